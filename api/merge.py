"""Several asynchronous generators read as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """What they yield, as it comes, each with its source's place. The end of this one closes them all.

    The next of a source is asked for when its last was taken.
    """
    coming = {asyncio.create_task(_next(source)): place for place, source in enumerate(sources)}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = coming.pop(task)
                for item in task.result():
                    yield place, item
                    coming[asyncio.create_task(_next(sources[place]))] = place
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _next(source: AsyncGenerator[T]) -> list[T]:
    """Its next item; none at its end."""
    async for item in source:
        return [item]
    return []
