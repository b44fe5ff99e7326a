"""A small cache for what many requests ask and may be a second old: keys, model cards, queue depths."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class _Entry(Generic[V]):
    expires_at: float  # monotonic
    value: asyncio.Task[V]

    def is_usable(self, now: float) -> bool:
        failed = self.value.done() and (self.value.cancelled() or self.value.exception() is not None)
        return now < self.expires_at and not failed


class TtlCache(Generic[K, V]):
    """Values kept for `seconds`, at most `max_size` of them. However many ask at once, a value is loaded once."""

    def __init__(self, seconds: float, *, max_size: int = 1024) -> None:
        self.seconds = seconds
        self.max_size = max_size
        self._entries: dict[K, _Entry[V]] = {}  # written by the event loop only

    async def get(self, key: K, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value of `key`, loaded unless a fresh one is held. A failed load is not kept."""
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is None or not entry.is_usable(now):
            self._make_room(now)
            entry = _Entry(now + self.seconds, asyncio.create_task(load()))
            self._entries[key] = entry
        return await asyncio.shield(entry.value)  # a client that leaves must not cancel the load of others

    def forget(self, key: K) -> None:
        """Load `key` anew the next time."""
        self._entries.pop(key, None)

    def _make_room(self, now: float) -> None:
        if len(self._entries) >= self.max_size:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.is_usable(now)}
        while len(self._entries) >= self.max_size:
            del self._entries[next(iter(self._entries))]  # the oldest insertion
