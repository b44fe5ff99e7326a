"""A delivered token, tokens as JSON, and how a stream tells a success: as streams and journals have them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from db.texts import storable

# Kept: `json.dumps` makes one for each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Token:
    """A delivered token. The texts of a choice's tokens, joined, are its text; one may be empty.

    A job's tokens are in the order of (place in its choice, choice), whenever each was computed.
    """

    token_id: int
    text: str
    logprobs: dict[str, Any] | None = None  # {"logprob", "top": [[token id, logprob], ...]}
    choice: int = 0  # which of the job's outputs it belongs to


@dataclass(frozen=True)
class Success:
    """What there is to say of a job that succeeded, besides its tokens."""

    finish_reasons: list[str]  # of each choice
    num_cached_tokens: int  # of the prompt

    def encode(self) -> str:
        """As JSON."""
        return json.dumps([self.finish_reasons, self.num_cached_tokens])

    @classmethod
    def decode(cls, said: str | bytes) -> Self:
        """What was encoded."""
        return cls(*json.loads(said))


def encode(tokens: Iterable[Token]) -> str:
    """The tokens as JSON, a list for each."""
    return _encode([_as_list(token) for token in tokens])


def decode(lists: Iterable[Sequence[Any]]) -> list[Token]:
    """The tokens that were encoded, of what the JSON says."""
    return [Token(*said) for said in lists]


def _as_list(token: Token) -> list[Any]:
    """What the token is made from; nearly all are of the first choice, which goes unsaid."""
    said = [token.token_id, storable(token.text), token.logprobs]
    return [*said, token.choice] if token.choice else said
