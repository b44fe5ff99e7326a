"""When a waiting job starts, and how sure that is."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import inf
from random import Random

import pytest

from api.pace import MOST_SECONDS, SEAT_SECONDS, Pace, StartIn, estimate
from db.order import overtaken_seconds
from db.rates import WINDOW_SECONDS, Rate, Second, Started, start_rate
from db.settings import Settings
from tests.api.serving import api_with

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_pace(*, per_second: float = 2.0, num_starts: int = 100, arrivals: tuple[float, ...] = (0, 0, 0)) -> Pace:
    return Pace(Rate(per_second, 1.0, num_starts), num_running=4, num_seats=4, arrivals_per_second=arrivals)


def test_a_free_seat_is_taken_at_once_and_without_a_rate_nothing_is_told() -> None:
    pace = Pace(None, num_running=2, num_seats=4)
    assert pace.start_in(2) == StartIn(0.0, 0.0, SEAT_SECONDS)
    assert pace.start_in(3) is None and estimate(pace, 3) is None


def test_the_interval_lies_around_the_estimate_and_narrows_with_what_was_measured() -> None:
    few, many = (make_pace(num_starts=number).start_in(50) for number in (5, 500))
    assert few is not None and many is not None
    assert few.likely == many.likely == 25.0
    assert few.earliest < many.earliest < 25.0 < many.latest < few.latest


def test_jobs_of_better_tiers_that_keep_arriving_delay_the_likely_and_the_latest_start() -> None:
    pace = make_pace(arrivals=(1.5, 0.25, 9.0))
    high, low = pace.start_in(10), pace.start_in(10, tier=2, overtaken_seconds=inf)
    assert high is not None and low is not None
    assert (high.likely, low.likely) == (5.0, 40.0), "0.25 starts a second are left for it"
    assert low.earliest == high.earliest and low.latest > high.latest


def test_once_aged_a_job_has_every_fourth_turn_however_many_better_ones_arrive() -> None:
    flooded = make_pace(arrivals=(9.0, 0.0, 0.0))
    start = flooded.start_in(10, tier=2, overtaken_seconds=34.0)
    assert start is not None and start.likely == 34.0 + 10 / (2.0 / 4)
    never = flooded.start_in(10, tier=2, overtaken_seconds=inf)
    assert never is not None and never.likely == never.latest == MOST_SECONDS


def test_how_long_a_job_is_overtaken_falls_as_it_waits(settings: Settings) -> None:
    def seconds(tier: int, wait: float | None, **changes: object) -> float:
        ready_at = None if wait is None else NOW - timedelta(seconds=wait)
        return overtaken_seconds(tier, ready_at, NOW, settings.model_copy(update=changes))

    assert [seconds(tier, 0) for tier in range(3)] == [0, 32, 34]
    assert [seconds(2, wait) for wait in (10, 34, 99)] == [24, 0, 0]
    assert seconds(2, None) == 34, "parked: its wait has not begun"
    assert (seconds(2, 0, queue_policy="fcfs"), seconds(2, 99, aging_boost=0.0)) == (0, inf)


def test_what_a_client_is_told_are_times_in_order() -> None:
    told = estimate(make_pace(), 10, now=NOW)
    assert told is not None and told.start_in_seconds == 5.0
    assert NOW < told.earliest < told.start_at == NOW + timedelta(seconds=5) < told.latest


@pytest.mark.parametrize("is_bursty", [False, True])
def test_nine_starts_in_ten_fall_within_the_interval(is_bursty: bool) -> None:
    """Of starts at random, one by one or eight at a time, each estimate from the two minutes before it."""
    random = Random(7)
    num_within = num_all = 0
    for _ in range(60):
        times = list(starts(random, is_bursty=is_bursty))
        rate = start_rate(window(times), oldest_wait=float(WINDOW_SECONDS), num_seats=8)
        pace = Pace(rate, num_running=8, num_seats=8)
        coming = [time - WINDOW_SECONDS for time in times if time > WINDOW_SECONDS]
        for position in (1, 8, 40, 200):
            start = pace.start_in(position)
            assert start is not None
            num_within += start.earliest <= coming[position - 1] <= start.latest
            num_all += 1
    assert 0.85 <= num_within / num_all <= 1.0


def starts(random: Random, *, is_bursty: bool) -> Iterator[float]:
    """About 1.6 starts a second for two windows and more."""
    size, gap = (8, 5.0) if is_bursty else (1, 0.625)
    for time in accumulate(random.expovariate(1 / gap) for _ in range(round(8 * WINDOW_SECONDS / gap))):
        yield from [time] * size


def window(times: list[float]) -> Started:
    """What Postgres would have counted in the first `WINDOW_SECONDS`."""
    ages = [int(WINDOW_SECONDS - time) for time in times if time <= WINDOW_SECONDS]
    return Started([Second(age, ages.count(age), None, 0, 0.0) for age in sorted(set(ages))], [0, 0, 0])


async def test_every_waiting_job_has_an_interval_the_parked_too(settings, keys, worker, submit) -> None:
    for job in [await submit() for _ in range(4)]:
        worker.start(job["id"])
    async with api_with(settings, key_window=1) as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 4}
        jobs = [(await client.post("/v1/jobs", json=body | {"tier": tier})).json() for tier in ("low", "low", "high")]
    assert [job["ready_at"] is None for job in jobs] == [False, True, False]
    for job in jobs:
        when = job["estimate"]
        earliest, likely, latest = (datetime.fromisoformat(when[name]) for name in ("earliest", "start_at", "latest"))
        assert job["position"] and earliest < likely < latest
