"""A prompt as it stands before a completion's text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from db.stream import Token
from workers.text.detokenizer import Detokenizer
from workers.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Echo:
    """The prompt's text; `tokens` are there where they are told one by one."""

    text: str
    tokens: tuple[Token, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, token_ids: Sequence[int]) -> "Echo":
        """A prompt that is shown as the model reads it."""
        detokenizer = Detokenizer(tokenizer)
        tokens = [Token(token_id, detokenizer.push(token_id)) for token_id in token_ids]
        tokens[-1] = replace(tokens[-1], text=tokens[-1].text + detokenizer.flush())
        return cls("".join(token.text for token in tokens), tuple(tokens))

    def with_logprobs(self, entries: Sequence[dict[str, Any]]) -> list[Token]:
        """The tokens with log probabilities, which all have but the first."""
        return [replace(token, logprobs=entry) for token, entry in zip(self.tokens, [None, *entries], strict=True)]


NO_ECHO = Echo("")
