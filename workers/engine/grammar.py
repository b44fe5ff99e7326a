"""What the engine asks of a grammar that an output must follow. `workers/text/grammar.py` has the one there is."""

from typing import Protocol, Self


class Grammar(Protocol):
    """Where one output stands in its grammar. An exception from any of this fails that output alone."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        ...

    def mask(self) -> bytes:
        """Which tokens may come next: a bit per token id, the lowest one first. Those beyond its end may not."""
        ...

    def accept(self, token_id: int) -> None:
        """Move on by a token."""
        ...

    def fork(self) -> Self:
        """Another that stands where this one does."""
        ...
