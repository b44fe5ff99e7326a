import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import DataError, OperationalError

from api.batcher import Batcher


class Doubler:
    """Doubles numbers; remembers what came together. The first batch waits for the gate."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error = error

    async def work(self, numbers: list[int]) -> Sequence[int]:
        self.batches.append(numbers)
        await self.gate.wait()
        if self.error is not None and 13 in numbers:
            raise self.error
        return [2 * number for number in numbers]


async def settle(doubler: Doubler, batcher: Batcher[int, int], numbers: Sequence[int]) -> list[int | BaseException]:
    """Run the first number, and the others while it is on its way."""
    first = asyncio.create_task(batcher.run(numbers[0]))
    await asyncio.sleep(0)
    others = [asyncio.create_task(batcher.run(number)) for number in numbers[1:]]
    await asyncio.sleep(0)
    doubler.gate.set()
    return await asyncio.gather(first, *others, return_exceptions=True)


async def test_what_comes_meanwhile_goes_together_and_each_gets_its_own_result() -> None:
    doubler = Doubler()
    assert await settle(doubler, Batcher(doubler.work), [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert doubler.batches == [[1], [2, 3, 4]]


async def test_a_batch_has_at_most_so_many() -> None:
    doubler = Doubler()
    assert await settle(doubler, Batcher(doubler.work, limit=2), [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert doubler.batches == [[1], [2, 3], [4]]


async def test_one_bad_item_fails_alone() -> None:
    error = DataError("INSERT", {}, ValueError("bad"))
    doubler = Doubler(error)
    assert await settle(doubler, Batcher(doubler.work), [1, 2, 13, 4]) == [2, 4, error, 8]


async def test_a_store_that_is_away_is_asked_once_for_all() -> None:
    error = OperationalError("INSERT", {}, ValueError("away"))
    doubler = Doubler(error)
    assert await settle(doubler, Batcher(doubler.work), [1, 2, 13]) == [2, error, error]
    assert doubler.batches == [[1], [2, 13]]


async def test_a_client_that_leaves_takes_nobody_with_it() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler.work)
    leaving, staying = asyncio.create_task(batcher.run(1)), asyncio.create_task(batcher.run(2))
    await asyncio.sleep(0)
    leaving.cancel()
    doubler.gate.set()
    assert await staying == 4
    with pytest.raises(asyncio.CancelledError):
        await leaving
