"""The hub by itself: what it does when what it stands on misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import redis
import redis.asyncio

from api.stream import StreamHub
from db import stream
from db.ids import new_id
from db.models import Status
from db.stream import Append, Token

WORKER_ID = UUID(int=1)


@asynccontextmanager
async def hub_that_hears_of(client: redis.asyncio.Redis, status: str) -> AsyncIterator[StreamHub]:
    """A hub that runs, where every row has this status."""

    async def statuses(job_ids: list[UUID]) -> dict[UUID, str]:
        return dict.fromkeys(job_ids, status)

    hub = StreamHub(client, statuses)
    hub.start()
    yield hub
    await hub.stop()


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


async def test_the_start_of_a_job_wakes_only_who_wants_its_row(async_redis: redis.asyncio.Redis) -> None:
    told = {"status": Status.RUNNING}

    async def statuses(job_ids: list[UUID]) -> dict[UUID, str]:
        return dict.fromkeys(job_ids, told["status"])

    hub, job_id = StreamHub(async_redis, statuses, silent_seconds=0.05), new_id()
    hub.start()
    with hub.watch(job_id, "queued") as full, hub.watch(job_id, "queued", wants_rows=False) as brief:
        while not full.is_row_due:
            await full.wait()
        assert not brief.is_row_due
        told["status"] = Status.SUCCEEDED
        while not brief.is_row_due:
            await brief.wait()
    await hub.stop()


async def test_a_stream_that_was_but_opened_wakes_only_who_wants_the_row(
    async_redis: redis.asyncio.Redis, redis_client: redis.Redis
) -> None:
    job_id = new_id()
    async with hub_that_hears_of(async_redis, "queued") as hub:
        with hub.watch(job_id, "queued") as full, hub.watch(job_id, "queued", wants_rows=False) as brief:
            await asyncio.gather(full.wait(), brief.wait())  # the subscription stands
            stream.open(redis_client, job_id, 1, WORKER_ID)
            await full.wait()
            assert not brief.is_woken
            append(redis_client, job_id, 0)
            await asyncio.gather(full.wait(), brief.wait())


async def test_a_message_that_says_nothing_wakes_and_the_hub_goes_on(
    async_redis: redis.asyncio.Redis, redis_client: redis.Redis
) -> None:
    job_id = new_id()
    async with hub_that_hears_of(async_redis, "running") as hub:
        with hub.watch(job_id, "running") as watch:
            await watch.wait()  # the subscription stands
            for nonsense in ("", "nonsense", "1.5 []"):
                redis_client.publish(stream.channel_of(job_id), nonsense)
                await watch.wait()
                assert watch.take_news() is None
            stream.open(redis_client, job_id, 1, WORKER_ID)
            append(redis_client, job_id, 0)
            await watch.wait()


async def test_only_who_is_awake_for_each_piece_of_news_has_it_told(
    async_redis: redis.asyncio.Redis, redis_client: redis.Redis
) -> None:
    job_id = new_id()
    stream.open(redis_client, job_id, 1, WORKER_ID)
    async with hub_that_hears_of(async_redis, "running") as hub:
        with hub.watch(job_id, "running") as awake, hub.watch(job_id, "running") as asleep:
            await asyncio.gather(awake.wait(), asleep.wait())  # the subscription stands
            assert awake.take_news() is None
            for index in range(2):
                append(redis_client, job_id, index)
                await awake.wait()
                news = awake.take_news()
                assert news is not None and news.num_tokens == index + 1
                assert awake.take_news() is None, "it is told once"
            await asleep.wait()
            assert asleep.take_news() is None, "the first piece was not taken when the second came"


def append(client: redis.Redis, job_id: UUID, index: int) -> None:
    stream.append_many(client, [Append(job_id, 1, WORKER_ID, index, [Token(index, "a")])])
