"""The hub by itself: what it does when what it stands on misbehaves."""

import asyncio
from uuid import UUID

import redis.asyncio

from api.stream import StreamHub
from db.ids import new_id


async def test_the_hub_stops_although_a_statement_swallowed_its_cancellation(async_redis: redis.asyncio.Redis) -> None:
    asked = asyncio.Event()

    async def statuses(job_ids: list[UUID]) -> dict[UUID, str]:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return dict.fromkeys(job_ids, "queued")  # as if the answer had come in the same moment
        raise AssertionError("nothing sets it")

    hub = StreamHub(async_redis, statuses)
    hub.start()
    with hub.watch(new_id(), "queued"):
        await asked.wait()
        await hub.stop()
