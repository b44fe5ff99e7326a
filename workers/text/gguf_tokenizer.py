"""Rebuilds a tokenizer from the metadata of a GGUF file, as a `tokenizers.Tokenizer` that can be saved.

Takes the metadata as a plain dictionary, keyed as in the file; knows nothing of the file itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from workers.text.gguf_split import SPLITS, Split

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
SPACE = "\u2581"  # how SentencePiece spells a space


class UnsupportedTokenizer(ValueError):
    """The file names a tokenizer that cannot be rebuilt; the text says which, and what could be."""


def build_tokenizer(kv: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `kv` (a GGUF file's metadata) describes, its special tokens included.

    Raises UnsupportedTokenizer for a kind or a split expression that is not known, since a guess would feed the model
    token ids that it never saw in training.
    """
    kind = kv.get("tokenizer.ggml.model")
    if kind == "llama":
        tokenizer = _sentencepiece(kv)
        adds_bos = True
    elif kind == "gpt2":
        split = _split_of(kv)
        tokenizer = _byte_level(kv, split)
        adds_bos = split.adds_bos
    else:
        raise UnsupportedTokenizer(f"this GGUF has a tokenizer of kind {kind!r}; known are 'llama' and 'gpt2'")
    _add_tokens(tokenizer, kv)
    _add_ends(
        tokenizer,
        kv,
        adds_bos=bool(kv.get("tokenizer.ggml.add_bos_token", adds_bos)),
        adds_eos=bool(kv.get("tokenizer.ggml.add_eos_token", False)),
    )
    return tokenizer


def _sentencepiece(kv: Mapping[str, Any]) -> Tokenizer:
    pieces = _strings(kv["tokenizer.ggml.tokens"])
    types = _types(kv)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: token_id for token_id, piece in enumerate(pieces)},
            merges=_merges_by_score(pieces, types, kv["tokenizer.ggml.scores"]),
            byte_fallback=BYTE in types,
            fuse_unk=True,
            unk_token=pieces[int(kv.get("tokenizer.ggml.unknown_token_id", 0))],
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if kv.get("tokenizer.ggml.add_space_prefix", True):
        # The text and what follows a special token begin with a space that the decoder takes away again.
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(pieces: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merge list that makes BPE choose as SentencePiece does: the best-scored piece that two neighbours form."""
    ids = {piece: token_id for token_id, piece in enumerate(pieces) if types[token_id] in (NORMAL, USER_DEFINED)}
    merges: list[tuple[float, int, int, int, str, str]] = []
    for piece, token_id in ids.items():
        for length in range(1, len(piece)):
            left, right = piece[:length], piece[length:]
            if left in ids and right in ids:
                merges.append((-float(scores[token_id]), token_id, ids[left], ids[right], left, right))
    merges.sort()
    return [merge[4:] for merge in merges]


def _byte_level(kv: Mapping[str, Any], split: Split) -> Tokenizer:
    pieces = _strings(kv["tokenizer.ggml.tokens"])
    merges = []
    for merge in _strings(kv["tokenizer.ggml.merges"]):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=split.ignores_merges))
    if split.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split.steps(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_of(kv: Mapping[str, Any]) -> Split:
    name = str(kv.get("tokenizer.ggml.pre", "default"))
    split = SPLITS.get(name)
    if split is None:
        known = ", ".join(sorted(SPLITS))
        raise UnsupportedTokenizer(f"this GGUF splits text as {name!r} (tokenizer.ggml.pre); known are {known}")
    return split


def _add_tokens(tokenizer: Tokenizer, kv: Mapping[str, Any]) -> None:
    """Mark the tokens that stand for themselves in a text: control tokens are special, user-defined ones are text."""
    pieces = _strings(kv["tokenizer.ggml.tokens"])
    types = _types(kv)
    special = [piece for piece, kind in zip(pieces, types, strict=True) if kind in (CONTROL, UNKNOWN)]
    plain = [piece for piece, kind in zip(pieces, types, strict=True) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in special])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in plain])


def _add_ends(tokenizer: Tokenizer, kv: Mapping[str, Any], *, adds_bos: bool, adds_eos: bool) -> None:
    pieces = kv["tokenizer.ggml.tokens"]
    bos_id, eos_id = kv.get("tokenizer.ggml.bos_token_id"), kv.get("tokenizer.ggml.eos_token_id")
    before = [(str(pieces[int(bos_id)]), int(bos_id))] if adds_bos and bos_id is not None else []
    after = [(str(pieces[int(eos_id)]), int(eos_id))] if adds_eos and eos_id is not None else []
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(token for token, _ in before), "$A", *(token for token, _ in after)],
            special_tokens=[*before, *after],
        )


def _strings(values: Sequence[Any]) -> list[str]:
    return [str(value) for value in values]


def _types(kv: Mapping[str, Any]) -> list[int]:
    return [int(value) for value in kv["tokenizer.ggml.token_type"]]
