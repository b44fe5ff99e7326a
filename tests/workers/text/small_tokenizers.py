"""Tokenizers of every kind the detokenizer tells apart, small enough to draw their token ids at random."""

import json
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from tests.checkpoints import tokenizer_json
from workers.text.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, build_tokenizer
from workers.text.tokenizer import Tokenizer

PIECES = ("▁", "a", "b", "c", "é", "日", "▁a", "ab", "▁ab", "▁▁", ".", "�", "\n")
USER_PIECES = ("  ", "<table>")


def sentencepiece_kv(**overrides: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary: 3 special tokens, 256 bytes, PIECES, USER_PIECES."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *USER_PIECES]
    num_others = len(PIECES) + len(USER_PIECES)
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(PIECES) + [USER_DEFINED] * len(USER_PIECES)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(num_others)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{name}": value for name, value in overrides.items()}


def byte_level_kv(pre: str, **overrides: Any) -> dict[str, Any]:
    """GGUF metadata of the byte-level vocabulary that the tiny checkpoints have."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocab],
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(vocab) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    } | {f"tokenizer.ggml.{name}": value for name, value in overrides.items()}


def byte_level() -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    inner.add_tokens([AddedToken("née tag", normalized=False)])
    return Tokenizer(inner)


def gemma_like() -> Tokenizer:
    return Tokenizer(build_tokenizer(sentencepiece_kv(add_space_prefix=False)))


def llama_like() -> Tokenizer:
    return Tokenizer(build_tokenizer(sentencepiece_kv()))


def with_decoder(decoder: Any) -> Tokenizer:
    """PIECES and a few words, decoded by `decoder` (None: joined with spaces)."""
    tokens = ["<unk>", *PIECES, "un", "##able", "don", "n't", "end</w>", "|", "<pad>", "<0xE2>"]
    inner = tokenizers.Tokenizer(models.WordLevel({token: id_ for id_, token in enumerate(tokens)}, unk_token="<unk>"))
    if decoder is not None:
        inner.decoder = decoder
    return Tokenizer(inner)


ALL = {
    "byte-level": byte_level(),
    "gemma": gemma_like(),
    "llama": llama_like(),
    "metaspace": with_decoder(decoders.Metaspace()),
    "wordpiece": with_decoder(decoders.WordPiece()),
    "bpe suffix": with_decoder(decoders.BPEDecoder()),
    "ctc": with_decoder(decoders.CTC()),
    "no decoder": with_decoder(None),
    "replaces across tokens": with_decoder(decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "")])),
}
