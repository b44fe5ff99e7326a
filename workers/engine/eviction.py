"""Which of a tier's blocks goes first. A policy knows only the keys that may go."""

import heapq
from collections import OrderedDict
from typing import Literal, Protocol

PolicyName = Literal["lru", "frequency"]


class EvictionPolicy(Protocol):
    """An order among keys. `num_uses` counts how often the tier has given or been given the key, at least 1."""

    def add(self, key: bytes, num_uses: int) -> None: ...

    def remove(self, key: bytes) -> None: ...

    def pop(self) -> bytes | None:
        """Take out the key that goes first; None if there is none."""
        ...


class LeastRecentlyUsed:
    """The key that was added longest ago goes first."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes, num_uses: int) -> None:
        self._keys[key] = None

    def remove(self, key: bytes) -> None:
        del self._keys[key]

    def pop(self) -> bytes | None:
        return self._keys.popitem(last=False)[0] if self._keys else None


class LeastFrequentlyUsed:
    """The key with the fewest uses goes first, and what was popular once is forgotten in time.

    LFU with dynamic aging (Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating Content Management Techniques
    for Web Proxy Caches", 2000): a key's priority is its uses plus the priority of the last key that went. So a
    newcomer competes with those in use now, and a scan of keys used once displaces only its like.
    """

    def __init__(self) -> None:
        self._age = 0
        self._priorities: dict[bytes, int] = {}
        self._keys: dict[int, OrderedDict[bytes, None]] = {}  # by priority; the least recently used first
        self._lowest: list[int] = []  # heap of priorities, some of them without keys by now

    def add(self, key: bytes, num_uses: int) -> None:
        priority = self._priorities[key] = self._age + num_uses
        if priority not in self._keys:
            self._keys[priority] = OrderedDict()
            heapq.heappush(self._lowest, priority)
        self._keys[priority][key] = None

    def remove(self, key: bytes) -> None:
        del self._keys[self._priorities.pop(key)][key]

    def pop(self) -> bytes | None:
        while self._lowest and not self._keys[self._lowest[0]]:
            del self._keys[heapq.heappop(self._lowest)]
        if not self._lowest:
            return None
        self._age = self._lowest[0]
        key, _ = self._keys[self._age].popitem(last=False)
        del self._priorities[key]
        return key


def make_eviction_policy(name: PolicyName) -> EvictionPolicy:
    return LeastRecentlyUsed() if name == "lru" else LeastFrequentlyUsed()
