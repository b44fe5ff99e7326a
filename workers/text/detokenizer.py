"""Token ids to text, one token at a time: the deltas joined are what decoding all the ids at once gives.

How early text is final depends on the steps of the tokenizer's decoder, so there is one way per kind: bytes that only
need joining, a window that is decoded again, and, for a decoder not known to be local, one decode at the end.
"""

import codecs
from typing import Any, Protocol

from workers.text.token_text import bytes_of, is_byte_level, is_byte_token
from workers.text.tokenizer import Tokenizer

WINDOW_TOKENS = 16  # a window this long is cut
CONTEXT_TOKENS = 4  # to this many


class Detokenizer:
    """The text of a growing list of token ids. One sequence, one thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._deltas = _make_deltas(tokenizer)

    def push(self, token_id: int) -> str:
        """The text that has become final with `token_id`; what may still change is held."""
        token = self._tokenizer.token(token_id)
        # Decoding drops special and unknown ids before it does anything else, so neither ends a run of byte tokens.
        if token is None or self._tokenizer.is_special(token_id):
            return ""
        return self._deltas.push(token_id, token)

    def flush(self) -> str:
        """The text still held, now that no more tokens follow."""
        return self._deltas.flush()


class _Deltas(Protocol):
    def push(self, token_id: int, token: str) -> str: ...

    def flush(self) -> str: ...


class _ByteDeltas:
    """For a byte-level vocabulary: a token is bytes, and only a character cut in two waits for the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int, token: str) -> str:
        return self._decoder.decode(bytes_of(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDeltas:
    """For decoders in which the text of a token depends on a few neighbours, as in SentencePiece vocabularies.

    The window is [shown tokens] + [held tokens]. Its shown tokens are context: they take the effects that a decoder
    has at a beginning, such as the stripped leading space, so that the rest decodes as it does in the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._has_byte_fallback = any(part["type"] == "ByteFallback" for part in tokenizer.decoder_parts)
        self._window: list[int] = []
        self._num_shown_characters = 0  # of the window's text

    def push(self, token_id: int, token: str) -> str:
        self._window.append(token_id)
        # A run of byte tokens is decoded as one: text if all of it is UTF-8, else one U+FFFD for each. So it is held.
        if self._has_byte_fallback and is_byte_token(token):
            return ""
        return self._show()

    def flush(self) -> str:
        return self._show()

    def _show(self) -> str:
        text = self._tokenizer.decode(self._window)
        delta = text[self._num_shown_characters :]
        self._num_shown_characters = len(text)
        if len(self._window) >= WINDOW_TOKENS:
            self._cut()
        return delta

    def _cut(self) -> None:
        context = self._window[-CONTEXT_TOKENS:]
        num_characters = len(self._tokenizer.decode(context))
        # Context without a visible character could leave the leading strip to the next token.
        if num_characters > 0:
            self._window = context
            self._num_shown_characters = num_characters


class _WholeDeltas:
    """For a decoder that may look arbitrarily far: right before early."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []

    def push(self, token_id: int, token: str) -> str:
        self._token_ids.append(token_id)
        return ""

    def flush(self) -> str:
        text = self._tokenizer.decode(self._token_ids)
        self._token_ids = []
        return text


def _make_deltas(tokenizer: Tokenizer) -> _Deltas:
    if is_byte_level(tokenizer):
        return _ByteDeltas()
    if _is_local(tokenizer.decoder_parts):
        return _WindowDeltas(tokenizer)
    return _WholeDeltas(tokenizer)


def _is_local(parts: list[dict[str, Any]]) -> bool:
    """Whether a token's text never changes once a token that is no byte token has followed its run."""
    is_fused = False  # from here on a step sees the whole text as one token
    for part in parts:
        match part["type"]:
            case "Fuse":
                is_fused = True
            case "Strip":
                if is_fused and part["stop"] > 0:
                    return False
            case "Replace":
                if is_fused and len(part["pattern"].get("String", "")) != 1:
                    return False
            case "ByteFallback" | "Metaspace" | "WordPiece" | "CTC" | "BPEDecoder":
                if is_fused:
                    return False
            case _:
                return False
    return True
