"""Log probabilities as OpenAI's completions spell them."""

from api.completion_schemas import CompletionLogprobs
from db.stream import Token
from workers.text.token_text import token_text
from workers.text.tokenizer import Tokenizer


class Logprobs:
    """Turns the log probabilities of a choice's tokens into OpenAI's lists; keeps where the text stands."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0  # characters of text before the next token

    def of(self, tokens: list[Token]) -> CompletionLogprobs:
        """Of the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        entries = [token.logprobs or {"logprob": 0.0, "top": []} for token in tokens]
        return CompletionLogprobs(
            tokens=[token_text(self._tokenizer, token.token_id) for token in tokens],
            token_logprobs=[entry["logprob"] for entry in entries],
            top_logprobs=[self._top(entry["top"]) for entry in entries] if self._num_top else None,
            text_offset=offsets,
        )

    def _top(self, pairs: list[tuple[int, float]]) -> dict[str, float]:
        """Text to log probability, the likeliest first. Of two tokens with one spelling the likelier is told."""
        top: dict[str, float] = {}
        for token_id, logprob in pairs:
            top.setdefault(token_text(self._tokenizer, token_id), logprob)
        return top
