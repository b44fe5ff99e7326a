"""The cache of what many requests ask: loaded once, kept for a while, renewed behind the back of who cannot wait."""

import asyncio

import pytest

from api.cache import TtlCache

STALE = 60.0  # seconds


class Source:
    """Loads 1, 2, 3, ..., each once it is released."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.released = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def load(self) -> int:
        self.num_begun += 1
        number = self.num_begun
        await self.released.acquire()
        if self.error is not None:
            raise self.error
        return number


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_fresh_value_is_loaded_once_for_all_who_ask() -> None:
    cache, source = TtlCache[str, int](STALE), Source()
    source.released.release()
    assert await asyncio.gather(*(cache.get("a", source.load) for _ in range(3))) == [1, 1, 1]
    assert await cache.get("a", source.load) == 1


async def test_an_old_value_is_answered_at_once_while_it_is_loaded_anew_once() -> None:
    cache, source = TtlCache[str, int](0.0, renew_after=0.0), Source()
    source.released.release()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 1
    assert [await cache.get("a", source.load, stale_seconds=STALE) for _ in range(3)] == [1, 1, 1]
    await settled()
    assert source.num_begun == 2
    source.released.release()
    await settled()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 2


async def test_who_gets_an_old_value_goes_on_before_it_is_loaded_anew() -> None:
    cache, source = TtlCache[str, int](0.0), Source()
    source.released.release()
    await cache.get("a", source.load, stale_seconds=STALE)
    assert await cache.get("a", source.load, stale_seconds=STALE) == 1
    await settled()
    assert source.num_begun == 1


async def test_who_asks_for_a_fresh_value_waits_for_one() -> None:
    cache, source = TtlCache[str, int](0.0), Source()
    source.released.release()
    source.released.release()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 1
    assert await cache.get("a", source.load) == 2


async def test_a_failed_renewal_leaves_the_old_value_and_is_tried_again() -> None:
    cache, source = TtlCache[str, int](0.0, renew_after=0.0), Source()
    source.released.release()
    await cache.get("a", source.load, stale_seconds=STALE)
    source.error = OSError("the store is away")
    source.released.release()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 1
    await settled()
    source.error = None
    source.released.release()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 1
    await settled()
    assert await cache.get("a", source.load, stale_seconds=STALE) == 3


async def test_a_value_that_was_forgotten_meanwhile_does_not_come_back() -> None:
    cache, source = TtlCache[str, int](0.0), Source()
    source.released.release()
    await cache.get("a", source.load, stale_seconds=STALE)
    await cache.get("a", source.load, stale_seconds=STALE)
    cache.forget("a")
    source.released.release()
    await settled()
    source.error = LookupError("gone")
    source.released.release()
    with pytest.raises(LookupError):
        await cache.get("a", source.load, stale_seconds=STALE)
