"""When a waiting job starts, and how sure that is."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import inf
from random import Random

import pytest

from api.pace import MOST_SECONDS, SEAT_SECONDS, Pace, TierPace, estimate
from api.progress import Progress, StartIn
from db.flows import NUM_STRETCHES, Flow
from db.order import lifted_after
from db.rates import WINDOW_SECONDS, Rate, Second, start_rate
from db.settings import Settings
from tests.api.serving import api_with

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIFTED_AFTER = (0.0, 32.0, 34.0)  # of each tier, by default


def make_flow(num_waiting: int = 0, *, wait: float = 0.0) -> Flow:
    """A tier in which all jobs have waited about as long."""
    flow = Flow(oldest_wait=wait if num_waiting else None)
    flow.waiting[min(NUM_STRETCHES, int(wait / 5))] = num_waiting
    return flow


def make_pace(
    *waiting: Flow,
    per_second: float = 2.0,
    num_starts: int = 100,
    overtaking: tuple[float, float, float] = (0.0, 0.0, 0.0),
    lifted: tuple[float, float, float] = LIFTED_AFTER,
) -> Pace:
    """Four seats, all taken. `waiting`: what waits in the tiers, the best first."""
    found = [*waiting, *[make_flow()] * (3 - len(waiting))]
    tiers = [TierPace(*each) for each in zip(found, overtaking, lifted, strict=True)]
    return Pace(Rate(per_second, 1.0, num_starts), num_running=4, num_seats=4, tiers=tiers)


def start_in(pace: Pace, position: int, *, tier: int = 0, waited: float | None = 0.0) -> StartIn:
    start = pace.start_in(position, tier=tier, waited_seconds=waited)
    assert start is not None
    return start


def test_a_free_seat_is_taken_at_once_and_without_a_rate_nothing_is_told() -> None:
    pace = Pace(None, num_running=2, num_seats=4, tiers=make_pace().tiers)
    assert start_in(pace, 2) == StartIn(0.0, 0.0, SEAT_SECONDS)
    assert pace.start_in(3, tier=0, waited_seconds=0.0) is None
    assert estimate(pace, 3, tier=0, waited_seconds=0.0) is None


def test_the_interval_lies_around_the_estimate_and_narrows_with_what_was_measured() -> None:
    few, many = (start_in(make_pace(num_starts=number), 50) for number in (5, 500))
    assert few.likely == many.likely == 49.5 / 2
    assert few.earliest < many.earliest < many.likely < many.latest < few.latest


def test_nine_in_ten_is_one_and_two_thirds_deviations_either_way() -> None:
    """The count is 100 at t = 50, give or take a deviation of 10 by chance, or of 0.2 * 50 by doubt."""
    chance, doubt = Progress(2.0, 2.0, 0.0).reaches(100), Progress(2.0, 0.0, 0.2).reaches(100)
    for start, deviation in ((chance, lambda t: (2 * t) ** 0.5), (doubt, lambda t: 0.2 * t)):
        assert start.likely == 50
        assert 2 * start.earliest + 1.645 * deviation(start.earliest) == pytest.approx(100)
        assert 2 * start.latest - 1.645 * deviation(start.latest) == pytest.approx(100)
    assert Progress(0.3, 1.0, 0.2).reaches(9).latest == inf, "it may be that nothing is left for it"


def test_jobs_of_better_tiers_that_keep_arriving_delay_a_start() -> None:
    pace = make_pace(overtaking=(0.0, 1.0, 1.5), lifted=(0.0, inf, inf))
    starts = [start_in(pace, 10, tier=tier) for tier in range(3)]
    assert [start.likely for start in starts] == [9.5 / 2, 9.5 / 1, 9.5 / 0.5]
    assert starts[0].latest < starts[1].latest < starts[2].latest
    assert start_in(make_pace(overtaking=(0.0, 0.0, 9.0), lifted=(0.0, inf, inf)), 10, tier=2).likely == MOST_SECONDS


def test_once_lifted_a_job_starts_by_age_however_many_better_ones_arrive() -> None:
    """Ten older ones of its tier, whose turns began 4 s before its own: every fourth of two starts a second."""
    flooded = make_pace(make_flow(50), make_flow(), make_flow(10, wait=24.9), overtaking=(0.0, 9.0, 9.0))
    start = start_in(flooded, 61, tier=2, waited=20.0)
    assert start.likely == pytest.approx(9.1 + (4 * 11 - 0.5) / 2)
    assert start.earliest < start.likely < start.latest < 60
    flood_ends = start_in(make_pace(), 61, tier=2, waited=20.0)
    assert start.earliest == pytest.approx(flood_ends.earliest, rel=0.5), "it may be over by now"


def test_a_parked_job_has_all_of_its_aging_before_it() -> None:
    flooded = make_pace(make_flow(5), make_flow(), make_flow(10, wait=24.0), overtaking=(0.0, 9.0, 9.0))
    assert start_in(flooded, 16, tier=2, waited=None).likely == 34.0
    assert start_in(flooded, 36, tier=2, waited=None).likely == 10 + (4 * 31 - 0.5) / 2


def test_a_parked_job_will_pass_the_ready_ones_of_worse_tiers() -> None:
    """But for those that are lifted by then: 20 starts from now on, so that the last 40 ahead let 40 / 3 by."""
    backlog = make_flow(50, wait=24.0)
    start = start_in(make_pace(make_flow(60), make_flow(), backlog), 111, tier=0, waited=None)
    assert start.likely == pytest.approx((60 + 40 / 3 + 0.5) / 2)


def test_older_jobs_of_worse_tiers_take_turns_from_when_they_are_lifted() -> None:
    """The low ones are lifted in 10 s. Of the 80 high ones ahead 60 wait for longer; then three go for each low one."""
    backlog = make_flow(50, wait=24.0)
    assert start_in(make_pace(make_flow(80), make_flow(), backlog), 81).likely == (80 + 60 / 3 + 0.5) / 2
    assert start_in(make_pace(make_flow(80), make_flow(), backlog), 21).likely == 20.5 / 2
    younger = make_flow(50, wait=1.0)
    assert start_in(make_pace(make_flow(80), make_flow(), younger), 81, waited=20.0).likely == 80.5 / 2


def test_what_was_lifted_already_is_in_the_position() -> None:
    backlog = make_flow(50, wait=99.0)
    assert start_in(make_pace(make_flow(60), make_flow(), backlog), 81).likely == 80.5 / 2


def test_a_job_is_lifted_when_its_level_reaches_the_best_one(settings: Settings) -> None:
    def lifted(**changes: object) -> list[float]:
        return [lifted_after(tier, settings.model_copy(update=changes)) for tier in range(3)]

    assert lifted() == [0, 32, 34]
    assert lifted(aging_boost=0.0) == [0, inf, inf]
    assert lifted(queue_policy="fcfs") == [inf, inf, inf]


def test_what_a_client_is_told_are_times_in_order() -> None:
    told = estimate(make_pace(), 10, tier=0, waited_seconds=3.0, now=NOW)
    assert told is not None and told.start_in_seconds == 4.8
    assert NOW < told.earliest < told.start_at == NOW + timedelta(seconds=4.75) < told.latest


@pytest.mark.parametrize("is_bursty", [False, True])
def test_nine_starts_in_ten_fall_within_the_interval(is_bursty: bool) -> None:
    """Of starts at random, one by one or eight at a time, each estimate from the two minutes before it."""
    random = Random(7)
    num_within = num_all = 0
    for _ in range(60):
        times = list(starts(random, is_bursty=is_bursty))
        rate = start_rate(window(times), oldest_wait=float(WINDOW_SECONDS), num_seats=8)
        pace = Pace(rate, num_running=8, num_seats=8, tiers=make_pace().tiers)
        coming = [time - WINDOW_SECONDS for time in times if time > WINDOW_SECONDS]
        for position in (1, 8, 40, 200):
            start = start_in(pace, position)
            num_within += start.earliest <= coming[position - 1] <= start.latest
            num_all += 1
    assert 0.85 <= num_within / num_all <= 1.0


def starts(random: Random, *, is_bursty: bool) -> Iterator[float]:
    """About 1.6 starts a second for two windows and more."""
    size, gap = (8, 5.0) if is_bursty else (1, 0.625)
    for time in accumulate(random.expovariate(1 / gap) for _ in range(round(8 * WINDOW_SECONDS / gap))):
        yield from [time] * size


def window(times: list[float]) -> list[Second]:
    """What Postgres would have counted in the first `WINDOW_SECONDS`."""
    ages = [int(WINDOW_SECONDS - time) for time in times if time <= WINDOW_SECONDS]
    return [Second(age, ages.count(age), None, 0, 0.0) for age in sorted(set(ages))]


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
