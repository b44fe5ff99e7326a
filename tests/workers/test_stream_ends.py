"""Streams that their jobs' ends left open: Redis was away just then, and the worker that waited for it was killed."""

import asyncio
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine

from db import stream, stream_reads
from db.session import make_async_redis
from db.settings import Settings
from tests.workers.world import Sweeping
from workers.stream_ends import StreamEnds
from workers.sweep import Sweep


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis, settings: Settings) -> Sweeping:
    return Sweeping(engine, redis_client, Sweep(engine, redis_client, settings))


def left_open(world: Sweeping, worker_id: UUID) -> UUID:
    """A job that ended with two tokens, which its stream was not told."""
    job_id = running(world, worker_id)
    world.finish(worker_id, job_id)
    return job_id


def running(world: Sweeping, worker_id: UUID) -> UUID:
    job_id = world.add_job(ready_at=world.now())
    world.claim(worker_id, job_id)
    world.deliver(worker_id, job_id, 2)
    return job_id


def test_stream_that_outlived_its_jobs_end_is_closed_and_expires_in_minutes(
    world: Sweeping, settings: Settings
) -> None:
    worker_id = world.add_worker()
    ended, going_on = left_open(world, worker_id), running(world, worker_id)
    assert world.redis.ttl(stream.key_of(ended)) > stream.ENDED_SECONDS

    assert world.round().num_closed == 1
    assert 0 < world.redis.ttl(stream.key_of(ended)) <= stream.ENDED_SECONDS
    assert world.redis.ttl(stream.key_of(going_on)) > stream.ENDED_SECONDS
    [of_ended, of_going_on] = asyncio.run(read(settings, ended, going_on))
    assert (of_ended.is_ended, of_ended.num_tokens) == (True, world.job(ended).num_output_tokens)
    assert (of_going_on.is_ended, of_going_on.num_tokens) == (False, 2)
    assert world.round().num_closed == 0


def test_reader_of_such_a_stream_hears_of_its_end(world: Sweeping) -> None:
    job_id = left_open(world, world.add_worker())
    with world.redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(stream.channel_of(job_id))
        assert subscription.get_message(timeout=5) is None  # its own subscription
        world.round()
        message = subscription.get_message(timeout=5)
    assert message is not None and message["data"] == b"end"


def test_each_round_looks_at_a_few_keys_and_every_stream_is_met(world: Sweeping) -> None:
    worker_id = world.add_worker()
    job_ids = [left_open(world, worker_id) for _ in range(60)]
    ends = StreamEnds(world.engine, world.redis, num_keys=5)
    first = ends.run()
    assert 0 < first < 30
    num_rounds = 1
    while any(world.redis.ttl(stream.key_of(job_id)) > stream.ENDED_SECONDS for job_id in job_ids):
        ends.run()
        num_rounds += 1
        assert num_rounds <= 100
    assert num_rounds > 2


def test_key_that_is_no_stream_of_ours_keeps_no_other_from_being_closed(world: Sweeping) -> None:
    job_id = left_open(world, world.add_worker())
    world.redis.set("stream:somebody-elses", "text")
    world.redis.set(stream.key_of(UUID(int=7)), "text")
    assert world.round().num_closed == 1
    assert world.redis.ttl(stream.key_of(job_id)) <= stream.ENDED_SECONDS


async def read(settings: Settings, *job_ids: UUID) -> list[stream_reads.StreamRead]:
    client = make_async_redis(settings)
    try:
        return [await stream_reads.read(client, job_id, 0) for job_id in job_ids]
    finally:
        await client.aclose()
