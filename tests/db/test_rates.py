"""How fast jobs start: what is counted in Postgres, and the rate that is told from it."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from db import rates
from db.models import Job
from db.rates import Drain, Rate, Second, start_rate
from tests.db.rows import KEY, add_job, add_worker, now

OTHER_KEY = UUID(int=2)


@pytest.fixture
async def session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session:
        yield session


async def add(session: AsyncSession, moment: datetime, *, ready: float, start: float | None, **fields: Any) -> Job:
    """A job that became ready, and started, so many seconds ago."""
    started_at = None if start is None else moment - timedelta(seconds=start)
    times = {"ready_at": moment - timedelta(seconds=ready), "started_at": started_at}
    return await session.run_sync(lambda sync: add_job(sync, parked=True, **times | fields))


def second(age: int, num_started: int, *, since: float | None = None, ended: int = 0, run: float = 0.0) -> Second:
    return Second(age, num_started, since, ended, run)


async def test_starts_are_counted_by_the_second_with_the_longest_wait_and_what_ended(session: AsyncSession) -> None:
    moment = await session.run_sync(now)
    await add(session, moment, ready=9.5, start=2.5)
    await add(session, moment, ready=2.6, start=2.1, status="succeeded", ended_at=moment)
    await add(session, moment, ready=5.5, start=5.4)
    await add(session, moment, ready=200, start=150)
    await add(session, moment, ready=3, start=1, model="other")
    assert await rates.started(session, "m") == [
        Second(2, 2, pytest.approx(9.5, abs=0.4), 1, pytest.approx(2.1 + 2.5, abs=0.4)),
        Second(5, 1, None, 0, pytest.approx(5.4, abs=0.4)),
    ]


def test_only_seconds_in_which_jobs_waited_count_where_there_are_enough_of_them() -> None:
    """Ten seconds of backlog with two starts each, after a minute of one start now and then."""
    idle = [second(age, 1) for age in range(20, 80, 20)]
    busy = [second(age, 2, since=10.0) for age in range(10)]
    assert start_rate([*busy, *idle], oldest_wait=None, num_seats=0) == Rate(2.0, 1.0, 20)


def test_a_second_without_starts_counts_while_the_oldest_job_waits_through_it() -> None:
    burst = second(9, 8, since=10.0)
    rate = start_rate([burst], oldest_wait=9.5, num_seats=0)
    assert rate == Rate(0.8, pytest.approx((7.2**2 + 9 * 0.8**2) / 10 / 0.8), 8)


def test_a_rate_that_wanders_disperses_more_than_its_seconds_tell() -> None:
    """Of each second 1 or 3 starts, a variance of 1; of each 15 seconds 15 or 45, one of 225; the mean is 2, or 30."""
    seconds = [second(age, 1 if age < 30 else 3, since=60.0) for age in range(60)]
    assert start_rate(seconds, oldest_wait=None, num_seats=0) == Rate(2.0, 225 / 30, 120)


def test_of_an_idle_service_the_rate_is_its_seats_over_the_time_a_job_takes() -> None:
    assert start_rate([second(60, 1, ended=1, run=2.0)], oldest_wait=1.0, num_seats=4) == Rate(2.0, 1.0, 1)


def test_without_waits_and_ends_all_starts_since_the_first_count() -> None:
    rate = start_rate([second(0, 2), second(9, 1)], oldest_wait=None, num_seats=4)
    assert rate is not None and (rate.per_second, rate.num_starts) == (pytest.approx(0.3), 3)
    assert start_rate([], oldest_wait=99.0, num_seats=4) is None


async def test_a_queues_drain_is_its_own_tiers_in_jobs_and_tokens(session: AsyncSession) -> None:
    moment = await session.run_sync(now)
    for ago in (70, 10, 5):
        await add(session, moment, ready=ago, start=ago, max_tokens=97)
    await add(session, moment, ready=5, start=5, tier=0)
    drain = await rates.queue_drain(session, "m", 1)
    assert drain.jobs_per_second == pytest.approx(0.2, rel=0.05)
    assert drain.tokens_per_second == pytest.approx(20.0, rel=0.05)
    assert await rates.queue_drain(session, "m", 2) == Drain(0.0, 0.0)


async def test_a_keys_drain_is_of_all_its_models_and_tiers(session: AsyncSession) -> None:
    moment = await session.run_sync(now)
    for model in ("m", "n"):
        await session.run_sync(lambda sync, model=model: add_worker(sync, model=model))
        await add(session, moment, ready=10, start=10, model=model, tier=2)
    await add(session, moment, ready=10, start=10, key_id=OTHER_KEY)
    assert (await rates.key_drain(session, KEY)).jobs_per_second == pytest.approx(0.2, rel=0.05)
