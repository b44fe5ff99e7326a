"""Reading jobs: pages and filters, depths, and a position that the pop script agrees with."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import job_queries, jobs, workers
from db.job_filter import JobFilter
from db.job_queries import Depth, Load
from db.models import Job, Status
from db.settings import Settings
from tests.db.rows import KEY, add_job, add_worker, end_of, now

ME = UUID(int=11)


@pytest.fixture
async def async_session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session:
        yield session


async def add(session: AsyncSession, **fields: Any) -> Job:
    return await session.run_sync(lambda sync: add_job(sync, **fields))


async def test_a_job_is_seen_by_its_tenant_alone(async_session: AsyncSession) -> None:
    job = await add(async_session)
    row = await job_queries.get(async_session, "t", job.id)
    assert row is not None and row.job.id == job.id and row.input.prompt == "abc" and row.output is None
    assert await job_queries.get(async_session, "u", job.id) is None
    await async_session.run_sync(jobs.claim, ME, [job.id])
    await async_session.run_sync(jobs.finish, [end_of(job.id, ME)])
    row = await job_queries.get(async_session, "t", job.id)
    assert row is not None and row.output is not None and row.output.text == "hi!"


async def test_pages_go_from_the_newest_on_and_filters_all_apply(async_session: AsyncSession) -> None:
    ids = [(await add(async_session, tier=index % 2)).id for index in range(5)]
    await add(async_session, tenant="u")
    first = await job_queries.list_jobs(async_session, "t", limit=2)
    assert [row.job.id for row in first] == [ids[4], ids[3]]
    rest = await job_queries.list_jobs(async_session, "t", limit=9, after=ids[3])
    assert [row.job.id for row in rest] == [ids[2], ids[1], ids[0]]
    found = await job_queries.list_jobs(
        async_session,
        "t",
        limit=9,
        wanted=JobFilter(status=Status.QUEUED, tier=1, model="m", metadata={"who": "me"}),
    )
    assert [row.job.id for row in found] == [ids[3], ids[1]]
    assert await job_queries.list_jobs(async_session, "t", limit=9, wanted=JobFilter(metadata={"who": "you"})) == []


async def test_a_page_leaves_prompts_and_outputs_where_they_are(async_session: AsyncSession) -> None:
    job = await add(async_session)
    await async_session.run_sync(jobs.claim, ME, [job.id])
    await async_session.run_sync(jobs.finish, [end_of(job.id, ME)])
    async_session.expunge_all()
    (row,) = await job_queries.list_jobs(async_session, "t", limit=9)
    assert row.output is None
    bodies = {"prompt", "messages", "prompt_token_ids", "sampling", "request", "webhook_host"}
    assert inspect(row.input).unloaded == bodies
    assert row.input.metadata_ == {"who": "me"}


async def test_depths_tell_ready_parked_and_running_apart(async_session: AsyncSession) -> None:
    oldest = await add(async_session, age=9)
    await add(async_session)
    await add(async_session, parked=True)
    running = await add(async_session, tier=2)
    await async_session.run_sync(jobs.claim, ME, [running.id])
    assert oldest.ready_at is not None
    assert await job_queries.queue_depths(async_session) == [
        Depth("m", 1, 2, 1, 0, oldest_ready_at=pytest.approx(oldest.ready_at.timestamp()), num_tokens=3 * 19),
        Depth("m", 2, ready=0, parked=0, running=1, oldest_ready_at=None, num_tokens=0),
    ]
    await add(async_session, batch_id=ME)
    assert await job_queries.key_load(async_session, KEY, of_batches=False) == Load(3, 3 * 19)
    assert await job_queries.key_load(async_session, KEY, of_batches=True) == Load(1, 19)
    assert await job_queries.key_load(async_session, ME, of_batches=False) == Load(0, 0)


async def test_statuses_leave_out_what_is_gone(async_session: AsyncSession) -> None:
    job = await add(async_session)
    assert await job_queries.statuses(async_session, [job.id, ME]) == {job.id: "queued"}


async def test_running_job_has_no_position(async_session: AsyncSession, settings: Settings) -> None:
    job = await add(async_session)
    assert await job_queries.position(async_session, job, settings) == 1
    await async_session.run_sync(jobs.claim, ME, [job.id])
    assert await job_queries.position(async_session, job, settings) is None


async def test_parked_jobs_stand_behind_all_ready_ones(async_session: AsyncSession, settings: Settings) -> None:
    second = await add(async_session, parked=True)
    first = await add(async_session, parked=True, tier=0)
    await add(async_session, tier=2)
    assert await job_queries.position(async_session, first, settings) == 2
    assert await job_queries.position(async_session, second, settings) == 3


async def test_aged_backlog_does_not_stand_before_a_new_high_job(
    async_session: AsyncSession, settings: Settings
) -> None:
    for _ in range(20):
        await add(async_session, tier=2, age=100)
    high = [await add(async_session, tier=0, age=1 - index / 10) for index in range(4)]
    positions = [await job_queries.position(async_session, job, settings) for job in high]
    assert positions == [1, 2, 3, 5]


async def test_card_is_the_newest_workers_live_or_not(async_session: AsyncSession) -> None:
    moment = await async_session.run_sync(now)

    def add_workers(session: Session) -> tuple[UUID, UUID]:
        add_worker(session, started_at=moment - timedelta(seconds=9))
        newest = add_worker(session, started_at=moment, status="lost", renewed=99)
        return newest, add_worker(session, model="other")

    newest, other = await async_session.run_sync(add_workers)
    card = await workers.card(async_session, "m")
    assert card is not None and card.id == newest
    assert await workers.card(async_session, "unknown") is None
    assert {worker.id for worker in await workers.models(async_session)} == {newest, other}
    assert len(await workers.live(async_session, 30)) == 2
