"""Log probabilities as OpenAI's responses spell them."""

from typing import Any

from db.stream import Token
from workers.text.token_text import token_text
from workers.text.tokenizer import Tokenizer


class ResponseLogprobs:
    """Turns the log probabilities of tokens into OpenAI's objects."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, tokens: list[Token]) -> list[dict[str, Any]]:
        """One for each token that has them."""
        return [self._told(token) for token in tokens if token.logprobs is not None]

    def _told(self, token: Token) -> dict[str, Any]:
        assert token.logprobs is not None
        top = [self._entry(token_id, logprob) for token_id, logprob in token.logprobs["top"]]
        return self._entry(token.token_id, token.logprobs["logprob"]) | {"top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = token_text(self._tokenizer, token_id)
        return {"token": text, "bytes": list(text.encode()), "logprob": logprob}
