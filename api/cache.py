"""A small cache for what many requests ask and may be a second old: keys, model cards, queue depths."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

RENEW_AFTER_SECONDS = 0.05  # who asked goes first: what it asks for next would wait behind the load

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class _Entry(Generic[V]):
    fresh_until: float  # monotonic
    value: asyncio.Task[V]
    is_renewed: bool = False  # another one is on its way to take its place

    @property
    def has_failed(self) -> bool:
        return self.value.done() and (self.value.cancelled() or self.value.exception() is not None)

    def is_usable(self, now: float, stale_seconds: float = 0.0) -> bool:
        return now < self.fresh_until + stale_seconds and not self.has_failed


class TtlCache(Generic[K, V]):
    """Values kept for `seconds`, at most `max_size` of them. However many ask at once, a value is loaded once."""

    def __init__(self, seconds: float, *, max_size: int = 1024, renew_after: float = RENEW_AFTER_SECONDS) -> None:
        """`renew_after`: seconds from when somebody got an old value until it is loaded anew."""
        self.seconds = seconds
        self.max_size = max_size
        self.renew_after = renew_after
        self._entries: dict[K, _Entry[V]] = {}  # written by the event loop only

    async def get(self, key: K, load: Callable[[], Coroutine[Any, Any, V]], *, stale_seconds: float = 0.0) -> V:
        """The value of `key`, loaded unless a fresh one is held. A failed load is not kept.

        Who can do with one that is up to `stale_seconds` older gets that, and does not wait while it is loaded anew.
        """
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is None or not entry.is_usable(now, stale_seconds):
            self._make_room(now)
            entry = self._entries[key] = self._load(load, now)
        elif now >= entry.fresh_until and not entry.is_renewed:
            self._renew(key, entry, self._load(lambda: self._soon(load), now))
        return await asyncio.shield(entry.value)  # a client that leaves must not cancel the load of others

    def _load(self, load: Callable[[], Coroutine[Any, Any, V]], now: float) -> _Entry[V]:
        return _Entry(now + self.seconds, asyncio.create_task(load()))

    async def _soon(self, load: Callable[[], Coroutine[Any, Any, V]]) -> V:
        await asyncio.sleep(self.renew_after)
        return await load()

    def _renew(self, key: K, old: _Entry[V], new: _Entry[V]) -> None:
        """Put `new` in the place of `old` once it is loaded, unless that was forgotten or replaced meanwhile."""
        old.is_renewed = True

        def take_place(_: asyncio.Task[V]) -> None:
            old.is_renewed = False  # should the load have failed, the next who asks tries again
            if self._entries.get(key) is old and not new.has_failed:
                self._entries[key] = new

        new.value.add_done_callback(take_place)

    def forget(self, key: K) -> None:
        """Load `key` anew the next time."""
        self._entries.pop(key, None)

    def _make_room(self, now: float) -> None:
        if len(self._entries) >= self.max_size:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.is_usable(now)}
        while len(self._entries) >= self.max_size:
            del self._entries[next(iter(self._entries))]  # the oldest insertion
