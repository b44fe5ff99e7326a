"""What comes to the tiers and waits there, as it is counted in Postgres, and the rate that is told from it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from db import flows
from db.flows import NUM_STRETCHES, Flow, arrival_rate
from tests.db.rows import add_job, now


@pytest.fixture
async def session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session:
        yield session


async def add(session: AsyncSession, *, ready: float, start: float | None = None, **fields: Any) -> None:
    """A job that became ready, and started, so many seconds ago."""

    def insert(sync: Any) -> None:
        started_at = None if start is None else now(sync) - timedelta(seconds=start)
        add_job(sync, age=ready, started_at=started_at, **fields)

    await session.run_sync(insert)


def make_flow(*arrived: int) -> Flow:
    return Flow(arrived=[*arrived, *[0] * (NUM_STRETCHES - len(arrived))])


async def test_what_became_ready_lately_arrived_whether_it_started_or_not(session: AsyncSession) -> None:
    await add(session, ready=1, tier=0)
    await add(session, ready=12, start=1, tier=0, status="succeeded")
    await add(session, ready=12, start=1, tier=0)  # and was handed back
    await add(session, ready=200, tier=0)
    await add(session, ready=200, start=1, tier=1, status="running")
    await add(session, ready=1, tier=0, model="other")
    high, normal, low = await flows.of_tiers(session, "m")
    assert high.arrived[:4] == [1, 0, 2, 0] and sum(high.arrived) == 3
    assert normal.arrived == low.arrived == [0] * NUM_STRETCHES


async def test_what_waits_is_told_by_how_long_it_has(session: AsyncSession) -> None:
    for ready in (1, 7, 8, 300):
        await add(session, ready=ready, tier=2)
    await add(session, ready=7, start=1, tier=2, status="running")
    await session.run_sync(lambda sync: add_job(sync, parked=True, tier=2))
    high, _, low = await flows.of_tiers(session, "m")
    assert (low.waiting[:3], low.waiting[-1], sum(low.waiting)) == ([1, 2, 0], 1, 4)
    assert low.oldest_wait == pytest.approx(300, abs=2)
    assert (high.oldest_wait, sum(high.waiting)) == (None, 0)


def test_jobs_of_a_stretch_are_taken_to_be_spread_evenly() -> None:
    flow = Flow(waiting=[4, 10, *[0] * (NUM_STRETCHES - 2), 8], oldest_wait=200.0)
    assert [flow.num_older(seconds) for seconds in (0, 2.5, 5, 7, 10, 120, 160, 200, 1e9)] == [
        *(22, 20, 18, 14, 8, 8, 4, 0, 0)
    ]
    assert Flow().num_older(0.0) == 0


def test_a_burst_that_is_over_is_no_rate_and_what_goes_on_is_one_soon() -> None:
    assert arrival_rate([make_flow(20, 20, 400)]) == 4.0
    assert arrival_rate([make_flow(100, 20, 20, 20)]) == 4.0
    assert arrival_rate([make_flow(100, 100, 20, 20)]) == 20.0
    assert arrival_rate([make_flow(10, 10, 10), make_flow(5, 5, 5)]) == 3.0


def test_rare_arrivals_are_counted_over_a_longer_time() -> None:
    every_ten_seconds = make_flow(*[1, 0] * (NUM_STRETCHES // 2))
    assert arrival_rate([every_ten_seconds]) == pytest.approx(0.1)
    assert arrival_rate([make_flow()]) == arrival_rate([]) == 0.0
