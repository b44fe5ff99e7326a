"""Many requests' statements as one: what comes while a batch is on its way goes together in the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from api.errors import is_store_away

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Runs `work` on lists of items, one list at a time. An item that comes alone waits for nobody.

    A round trip costs the same for one item and for thirty, so the busier the process, the cheaper each request.
    """

    def __init__(self, work: Callable[[list[T]], Awaitable[Sequence[R]]], *, limit: int = 64) -> None:
        """`work` returns one result per item, in their order; what it raises, its items' requests get."""
        self._work = work
        self._limit = limit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []  # written by the event loop only
        self._runner: asyncio.Task[None] | None = None  # None: nothing is on its way

    async def run(self, item: T) -> R:
        """The result of `item`. It is worked on whether or not its client is still there to hear of it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        result: R = await future
        return result

    async def _run(self) -> None:
        try:
            while batch := self._waiting[: self._limit]:
                del self._waiting[: self._limit]
                await self._settle(batch)
        finally:
            self._runner = None

    async def _settle(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not is_store_away(error):  # one of them is at fault: find out which
                for each in batch:
                    await self._settle([each])
                return
            for _, future in batch:
                _tell(future, error)
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)


def _tell(future: asyncio.Future[R], error: Exception) -> None:
    if not future.done():  # its client may have left
        future.set_exception(error)
