"""A position told from counts, held to what the pop script really does."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from db import job_queries, queue
from db.models import Job, Status
from db.queue import Ready
from db.settings import Settings
from tests.db.rows import KEY

NOW = datetime(2025, 1, 1, tzinfo=UTC)
Waiting = list[tuple[int, datetime]]  # tier and ready_at of each job; no two times are equal
WAITS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 5, 29, 31, 31.5, 32.5, 33, 40, 90])), min_size=1, max_size=14
)


@pytest.fixture
async def async_session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session:
        yield session


@pytest.mark.parametrize(("policy", "slack"), [("aging", 4), ("fcfs", 0)])
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waits=WAITS)
async def test_position_is_when_the_pop_script_takes_the_job(
    redis_client: redis.Redis,
    async_session: AsyncSession,
    settings: Settings,
    policy: str,
    slack: int,
    waits: list[tuple[int, float]],
) -> None:
    """Where the orders by tier and by age take turns, the position may be off by one turn: four pops."""
    chosen = settings.model_copy(update={"queue_policy": policy})
    jobs = [(tier, NOW - timedelta(seconds=wait + number / 1000)) for number, (tier, wait) in enumerate(waits)]
    positions = await _positions(async_session, jobs, chosen)
    for number, place in _pop_order(redis_client, jobs, chosen).items():
        assert abs(positions[number] - place) <= slack


@pytest.mark.parametrize(
    "waits", [[(1, 31.0)] * 4 + [(2, 33.5)], [(1, 5.0)] * 12 + [(2, 20.0)], [(0, 50.0)] * 5 + [(2, 40.0)]]
)
async def test_position_is_exact_beside_one_old_job_of_a_worse_tier(
    redis_client: redis.Redis, async_session: AsyncSession, settings: Settings, waits: list[tuple[int, float]]
) -> None:
    """It has aged past the others, or not yet."""
    jobs = [(tier, NOW - timedelta(seconds=wait - number / 1000)) for number, (tier, wait) in enumerate(waits)]
    places = _pop_order(redis_client, jobs, settings)
    assert await _positions(async_session, jobs, settings) == [places[number] for number in range(len(jobs))]


async def _positions(session: AsyncSession, jobs: Waiting, settings: Settings) -> list[int]:
    """What each job's client is told, in the order of `jobs`."""
    fields = {"tenant": "t", "key_id": KEY, "kind": "job", "model": "m", "status": Status.QUEUED, "stream": True}
    counts = {"seed": 1, "num_prompt_tokens": 3, "max_tokens": 16, "num_blocks": 2}
    rows = [
        {"id": UUID(int=number), "tier": tier, "ready_at": ready_at, **fields, **counts}
        for number, (tier, ready_at) in enumerate(jobs)
    ]
    await session.execute(delete(Job))
    await session.execute(insert(Job), rows)
    waiting = (await session.scalars(select(Job).order_by(Job.id))).all()
    found = [await job_queries.position(session, job, settings, NOW) or 0 for job in waiting]
    await session.rollback()
    return found


def _pop_order(client: redis.Redis, jobs: Waiting, settings: Settings) -> dict[int, int]:
    """For each job's number the place in which it is popped."""
    client.flushall()
    readies = [Ready(UUID(int=number), "m", tier, time.timestamp(), 1) for number, (tier, time) in enumerate(jobs)]
    queue.push(client, sorted(readies, key=lambda ready: ready.ready_at))
    popped = queue.pop(
        client,
        model="m",
        now=NOW.timestamp(),
        policy=settings.queue_policy,
        threshold=settings.aging_threshold_seconds,
        boost=settings.aging_boost,
        seats=len(jobs),
        blocks=1000,
        live_workers=1,
        pops=0,
    )
    return {message.job_id.int: place for place, message in enumerate(popped.messages, start=1)}


async def test_queue_that_never_ages_has_strict_tiers(async_session: AsyncSession, settings: Settings) -> None:
    still = settings.model_copy(update={"aging_boost": 0.0})
    jobs = [(2, NOW - timedelta(days=9)), (1, NOW - timedelta(days=1)), (0, NOW)]
    assert await _positions(async_session, jobs, still) == [3, 2, 1]
