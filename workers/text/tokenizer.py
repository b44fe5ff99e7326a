"""A model's tokenizer, read from its `tokenizer.json`. Knows nothing of models, jobs or chat."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

# Steps before the model that leave every byte of a text to some token, unless `_keeps_text` knows better.
KEEPING_STEPS = {"Replace", "Prepend", "NFC", "ByteLevel", "Split", "Digits", "Punctuation", "Metaspace"}
NFC_SHRINKS = 3  # three jamo of 3 bytes become a syllable of 3; nothing shrinks more


class Tokenizer:
    """Text to token ids and back. Immutable once made, so threads may share one."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        # A file may ask for truncation or padding. Both would change a prompt silently.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder().values()
        self._special_tokens = frozenset(token.content for token in added if token.special)
        self._bos_id = self._find_bos_id()

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer in the `tokenizer.json` at `path`. Raises ValueError when that is not one."""
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # `tokenizers` raises plain Exception for every kind of bad file
            raise ValueError(f"cannot read the tokenizer {path}: {error}") from error

    @property
    def vocab_size(self) -> int:
        """Number of token ids, those of added tokens included. A model's vocabulary may be padded beyond it."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`, with one beginning-of-sequence token where the model wants one.

        A rendered chat template often begins with that token already; it is not doubled.
        """
        # Of the calls that encode, the ones for batches let other Python threads run meanwhile.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoding.ids
        if add_special_tokens and self._bos_id is not None and token_ids[:2] == [self._bos_id, self._bos_id]:
            return token_ids[1:]
        return token_ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`. Ids the tokenizer does not know have no text."""
        return str(self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str | None:
        """The vocabulary entry of `token_id` as it is spelled there, or None when there is none."""
        return self._inner.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of the vocabulary entry that is spelled so, or None when there is none."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether decoding skips `token_id`, as it does `<|endoftext|>` and its like."""
        return self.token(token_id) in self._special_tokens

    @cached_property
    def decoder_parts(self) -> list[dict[str, Any]]:
        """The decoder's steps in order, as `tokenizer.json` writes them; empty when it has no decoder."""
        if self._inner.decoder is None:
            return []
        return _flatten(json.loads(self._inner.decoder.__getstate__()))

    @cached_property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more bytes (UTF-8) of a text than this; None where one may stand for any number.

        An unknown-word token would, and so would steps that drop or rewrite text before it is cut into tokens.
        """
        parts = (self._inner.normalizer, self._inner.pre_tokenizer)
        steps = [step for part in parts if part is not None for step in _flatten(json.loads(part.__getstate__()))]
        names = {step["type"] for step in steps}
        model = self._inner.model
        is_of_bytes = isinstance(model, tokenizers.models.BPE) and (model.byte_fallback or "ByteLevel" in names)
        added = self._inner.get_added_tokens_decoder().values()
        if not is_of_bytes or not all(map(_keeps_text, steps)) or any(token.lstrip or token.rstrip for token in added):
            return None
        longest = max(len(token.encode()) for token in self._inner.get_vocab(with_added_tokens=True))
        return longest * (NFC_SHRINKS if "NFC" in names else 1)

    def _find_bos_id(self) -> int | None:
        with_special = self._inner.encode("a", add_special_tokens=True).ids
        without = self._inner.encode("a", add_special_tokens=False).ids
        is_added = with_special[:1] != without[:1] or with_special[1 : len(without) + 1] == without
        return with_special[0] if with_special and is_added else None


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a sequence, which calls them decoders, normalizers or pretokenizers; others are one step."""
    if step["type"] != "Sequence":
        return [step]
    inner = step.get("decoders") or step.get("normalizers") or step.get("pretokenizers") or []
    return [part for each in inner for part in _flatten(each)]


def _keeps_text(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        replaced = step["pattern"].get("String")  # else it is a regular expression
        return replaced is not None and len(replaced.encode()) <= len(step["content"].encode())
    return step["type"] in KEEPING_STEPS and step.get("behavior") != "Removed"
