"""Cancelling a job that runs: what a client was shown is kept, whoever ends it and whatever is away."""

import asyncio
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from db import jobs, stream, stream_reads
from db.ids import new_id
from db.models import Status
from db.stream import Token
from tests.api.hand_worker import uuid_of
from tests.servers import Servers
from tests.workers.worker_process import wait_until


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.1)


async def test_while_redis_is_away_a_job_that_ran_is_left_to_its_worker(
    client, submit, worker, servers: Servers, impatient: None
) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one", " two")
    servers.valkey.kill()
    try:
        reply = await client.post(f"/v1/jobs/{job['id']}/cancel")
        assert (reply.status_code, reply.json()["status"]) == (200, "running")
        worker.commit_end(job["id"], Status.CANCELLED)  # as it does at its next round, which finds the mark
        again = (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()
    finally:
        servers.valkey.start()
    assert (again["status"], again["output"]["text"]) == ("cancelled", " one two")


async def test_while_redis_is_away_a_job_that_was_handed_back_is_left_to_the_sweep(
    client, submit, worker, engine: Engine, servers: Servers
) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one")
    with Session(engine) as session, session.begin():
        job_id = uuid_of(job["id"])
        assert jobs.release(session, worker.card.id, [(job_id, 1)], delivered={job_id: ()})
    servers.valkey.kill()
    try:
        reply = await client.post(f"/v1/jobs/{job['id']}/cancel")
    finally:
        servers.valkey.start()
    assert (reply.status_code, reply.json()["status"]) == (200, "queued")


async def test_a_stream_that_redis_lost_is_its_workers_to_bring_back(client, submit, worker, impatient: None) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one")
    worker.forget_stream(job["id"])
    reply = await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (reply.status_code, reply.json()["status"]) == (200, "running")


async def test_a_worker_that_commits_while_the_stream_is_read_is_too_late(
    client, submit, worker, engine: Engine, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one")
    fence, committing = stream.fence_async, []

    async def fence_and_wait(client: Redis, job_id: UUID) -> list[Token] | None:
        tokens = await fence(client, job_id)
        committing.append(asyncio.create_task(asyncio.to_thread(worker.commit_end, job["id"])))
        await asyncio.to_thread(wait_until, lambda: has_waiting_lock(engine), "the worker to find the row locked")
        return tokens

    monkeypatch.setattr(stream, "fence_async", fence_and_wait)
    ended = (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()
    assert (ended["status"], ended["output"]["text"]) == ("cancelled", " one")
    with pytest.raises(AssertionError):  # its end matched no row
        await committing[0]


def has_waiting_lock(engine: Engine) -> bool:
    with engine.connect() as connection:
        return connection.execute(text("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")).scalar_one() is True


async def test_a_worker_that_ends_the_job_first_is_read_as_it_ended_and_the_stream_is_closed(
    client, submit, worker, async_redis: Redis, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one", " two")
    end_now = jobs.end_now

    async def too_late(*args, **kwargs):
        worker.commit_end(job["id"], Status.SUCCEEDED)
        return await end_now(*args, **kwargs)

    monkeypatch.setattr(jobs, "end_now", too_late)
    ended = (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()
    assert (ended["status"], ended["output"]["text"]) == ("succeeded", " one two")
    read = await stream_reads.read(async_redis, uuid_of(job["id"]), 0)
    assert (read.num_tokens, read.is_ended) == (2, True)


async def test_a_fenced_stream_is_closed_by_its_end(async_redis: Redis, redis_client) -> None:
    job_id, worker_id = new_id(), new_id()
    stream.open(redis_client, job_id, 1, worker_id)
    await stream.fence_async(async_redis, job_id)
    await stream.end_async(async_redis, job_id, 0)
    assert (await stream_reads.read(async_redis, job_id, 0)).is_ended
    assert 0 < redis_client.ttl(stream.key_of(job_id)) <= stream.ENDED_SECONDS
