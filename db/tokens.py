"""A delivered token, and tokens as JSON: how streams and journals have them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from db.texts import storable


@dataclass(frozen=True)
class Token:
    """A delivered token. The texts of a choice's tokens, joined, are its text; one may be empty.

    A job's tokens are in the order of (place in its choice, choice), whenever each was computed.
    """

    token_id: int
    text: str
    logprobs: dict[str, Any] | None = None  # {"logprob", "top": [[token id, logprob], ...]}
    choice: int = 0  # which of the job's outputs it belongs to


def encode(tokens: Iterable[Token]) -> str:
    """The tokens as JSON, a list for each."""
    return json.dumps([_as_list(token) for token in tokens], ensure_ascii=False, separators=(",", ":"))


def decode(lists: Iterable[Sequence[Any]]) -> list[Token]:
    """The tokens that were encoded, of what the JSON says."""
    return [Token(*said) for said in lists]


def _as_list(token: Token) -> list[Any]:
    """What the token is made from; nearly all are of the first choice, which goes unsaid."""
    said = [token.token_id, storable(token.text), token.logprobs]
    return [*said, token.choice] if token.choice else said
