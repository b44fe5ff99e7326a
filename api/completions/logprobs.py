"""Log probabilities as OpenAI's completions spell them."""

from collections.abc import Iterable, Sequence

from api.completions.schemas import CompletionLogprobs
from db.stream import Token
from workers.text.token_text import token_text
from workers.text.tokenizer import Tokenizer


class Logprobs:
    """Turns the log probabilities of a choice's tokens into OpenAI's lists; keeps where the text stands."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0  # characters of text before the next token

    def of(self, tokens: Sequence[Token]) -> CompletionLogprobs:
        """Of the next tokens. One that has none, as the first of a prompt, has null."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        return CompletionLogprobs(
            tokens=[token_text(self._tokenizer, token.token_id) for token in tokens],
            token_logprobs=[None if token.logprobs is None else token.logprobs["logprob"] for token in tokens],
            top_logprobs=[self._top(token) for token in tokens] if self._num_top else None,
            text_offset=offsets,
        )

    def _top(self, token: Token) -> dict[str, float] | None:
        """Text to log probability, the likeliest first. Of two tokens with one spelling the likelier is told."""
        if token.logprobs is None:
            return None
        pairs: Iterable[tuple[int, float]] = token.logprobs["top"]
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            top.setdefault(token_text(self._tokenizer, token_id), logprob)
        return top
