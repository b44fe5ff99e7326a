"""A position told from counts, held to what the pop script really does."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from db import queue
from db.order import Ahead, aged_bound, jobs_ahead
from db.queue import Ready
from db.settings import TIERS, Settings

NOW = datetime(2025, 1, 1, tzinfo=UTC)
Waiting = list[tuple[int, datetime]]  # tier and ready_at of each job; no two times are equal
WAITS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 5, 29, 31, 31.5, 32.5, 33, 40, 90])), min_size=1, max_size=14
)


@pytest.mark.parametrize(("policy", "slack"), [("aging", 4), ("fcfs", 0)])
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waits=WAITS)
def test_position_is_when_the_pop_script_takes_the_job(
    redis_client: redis.Redis, settings: Settings, policy: str, slack: int, waits: list[tuple[int, float]]
) -> None:
    """Where the orders by tier and by age take turns, the position may be off by one turn: four pops."""
    chosen = settings.model_copy(update={"queue_policy": policy})
    jobs = [(tier, NOW - timedelta(seconds=wait + number / 1000)) for number, (tier, wait) in enumerate(waits)]
    for number, place in _pop_order(redis_client, jobs, chosen).items():
        assert abs(_position(jobs, number, chosen) - place) <= slack


def _position(jobs: Waiting, number: int, settings: Settings) -> int:
    """As `db.job_queries.position` counts it in Postgres."""
    own_tier, ready_at = jobs[number]
    ahead = []
    for tier in range(len(TIERS)):
        times = [other for other_tier, other in jobs if other_tier == tier and other != ready_at]
        bound = aged_bound(tier, own_tier, ready_at, NOW, settings)
        ahead.append(Ahead(len(times), sum(time < bound for time in times)))
    if settings.queue_policy == "fcfs":
        return 1 + sum(tier.aged for tier in ahead)
    lifted = sum(tier.aged for tier in ahead[own_tier + 1 :])
    return 1 + jobs_ahead(better=ahead[:own_tier], same=ahead[own_tier].aged, lifted=lifted)


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


def test_queue_that_never_ages_has_strict_tiers(settings: Settings) -> None:
    still = settings.model_copy(update={"aging_boost": 0.0})
    jobs = [(2, NOW - timedelta(days=9)), (1, NOW - timedelta(days=1)), (0, NOW)]
    assert [_position(jobs, number, still) for number in range(3)] == [3, 2, 1]
