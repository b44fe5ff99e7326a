"""A short storm in every run of the suite; `make chaos` is the long one."""

import asyncio

import pytest

from tests.chaos.faults import schedule
from tests.chaos.storm import storm

SEED = 1190  # kills both stores, one that runs batches and an engine worker, pauses the other for longer than its lease
STORM_SECONDS = 15.0


@pytest.mark.timeout(300)
def test_a_storm_loses_nothing_and_doubles_nothing() -> None:
    report = asyncio.run(storm(seed=SEED, storm_seconds=STORM_SECONDS, num_clients=8))

    assert list(report.verdict.sentences) == []
    assert report.num_kills > 0
    assert report.verdict.statuses["succeeded"] > 0


def test_a_schedule_is_a_function_of_its_seed() -> None:
    storms = [schedule(seed, storm_seconds=600, every_seconds=2) for seed in (1, 1, 2)]

    assert storms[0] == storms[1] != storms[2]


def test_ten_minutes_bring_every_kind_of_fault_and_150_kills() -> None:
    for seed in range(1, 6):
        faults = schedule(seed, storm_seconds=600, every_seconds=2)

        assert {fault.kind for fault in faults} == {"kill", "pause", "flush", "restart", "cut", "full"}
        assert sum(fault.kind == "kill" for fault in faults) >= 150
