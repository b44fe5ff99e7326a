"""Acting on many things at once, so that one which fails every time does not keep the others from being done."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from db.outage import is_refusing_all
from workers.contact import is_contact_lost

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


class Isolation(Generic[Item]):
    """Does one kind of act; remembers what it failed for, so that each is logged once. Used by one thread."""

    def __init__(self, log: logging.Logger, failure: str) -> None:
        """`failure` says what does not happen to an item that fails."""
        self._log = log
        self._failure = failure
        self._failing: set[Item] = set()

    def run(self, items: Sequence[Item], act: Callable[[Sequence[Item]], Result]) -> list[Result]:
        """`act` on all items; where that fails on each half of them, down to the item that fails alone.

        Returns what succeeded. Raises when a store is away or refuses all: then every item fails, and none is to blame.
        """
        if not items:
            return []
        try:
            result = act(items)
        except Exception as error:
            if is_contact_lost(error) or is_refusing_all(error):
                raise
            if len(items) == 1:
                self._failed(items[0], error)
                return []
            half = len(items) // 2
            return self.run(items[:half], act) + self.run(items[half:], act)
        self._failing.difference_update(items)
        return [result]

    def _failed(self, item: Item, error: Exception) -> None:
        if item not in self._failing:
            self._failing.add(item)
            self._log.error(self._failure, exc_info=error, extra={"item": str(item), "num_failing": len(self._failing)})
