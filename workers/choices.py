"""The one order in which the tokens of a job's choices are told, however steps were batched."""

from collections import deque
from collections.abc import Sequence

from db.stream import Token


class Choices:
    """Merges the choices' tokens by (place in its choice, choice), so that an event's number depends on them alone.

    A token is released once every choice before it in that order has given its own, or has ended without one.
    """

    def __init__(self, num_choices: int, *, told: Sequence[Token] = ()) -> None:
        """`told` are the tokens that an earlier run has told; what follows them is told here."""
        self._held_back: list[deque[Token]] = [deque() for _ in range(num_choices)]
        self._has_ended = [False] * num_choices
        # The choice whose turn it is; those before it have told their tokens of this place.
        self._next = (told[-1].choice + 1) % num_choices if told else 0

    def put(self, token: Token) -> None:
        """The next token of its choice."""
        assert not self._has_ended[token.choice], "a token of a choice that has ended"
        self._held_back[token.choice].append(token)

    def end(self, choice: int) -> None:
        """The choice has no more than it was given so far."""
        self._has_ended[choice] = True

    def end_all(self) -> None:
        """Nothing more comes of any choice: what is held back is released, without what is missing between."""
        self._has_ended = [True] * len(self._has_ended)

    def take(self) -> list[Token]:
        """Those that can be told now, in their order."""
        released: list[Token] = []
        num_skipped = 0  # in a row: with all of them the end is reached
        while num_skipped < len(self._held_back):
            tokens = self._held_back[self._next]
            if tokens:
                released.append(tokens.popleft())
                num_skipped = 0
            elif self._has_ended[self._next]:
                num_skipped += 1
            else:
                break
            self._next = (self._next + 1) % len(self._held_back)
        return released
