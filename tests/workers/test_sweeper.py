"""One process of many sweeps, and goes on sweeping."""

import threading
from collections.abc import Callable
from time import sleep

import pytest
import redis
from sqlalchemy import Engine, text

from db.settings import Settings
from tests.workers.worker_process import wait_until
from tests.workers.world import Sweeping
from workers.sweep import Report, Sweep
from workers.sweeper import Sweeper


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis, settings: Settings) -> Sweeping:
    return Sweeping(engine, redis_client, Sweep(engine, redis_client, settings))


def make_sweeper(world: Sweeping, settings: Settings) -> Sweeper:
    return Sweeper(world.engine, Sweep(world.engine, world.redis, settings), sweep_seconds=0.01)


def test_one_process_sweeps_and_another_takes_over_when_it_ends(world: Sweeping, settings: Settings) -> None:
    first, second = make_sweeper(world, settings), make_sweeper(world, settings)
    try:
        assert first.round() is not None
        assert second.round() is None
        first.stop()
        assert second.round() is not None
        assert first.round() is None
    finally:
        first.stop()
        second.stop()


def test_sweeper_whose_connection_was_cut_takes_the_lock_again_and_judges_anew(
    world: Sweeping, settings: Settings
) -> None:
    sweeper = Sweeper(world.engine, world.sweep, sweep_seconds=5)
    try:
        first = sweeper.round()
        assert first is not None
        world.warm_up()
        with world.engine.connect() as connection:
            connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))
        assert sweeper.round() is None
        again = sweeper.round()
        assert again is not None and not again.is_judging
    finally:
        sweeper.stop()


def test_process_that_is_frozen_loses_the_lock_and_judges_nobody_when_it_wakes(
    world: Sweeping, settings: Settings
) -> None:
    frozen = Sweeper(world.engine, world.sweep, sweep_seconds=0.01, idle_seconds=0.2)
    other = make_sweeper(world, settings)
    try:
        world.warm_up()
        assert frozen.round() is not None
        wait_until(lambda: other.round() is not None, "Postgres to end the idle session")
        assert frozen.round() is None  # its lock is gone
        assert frozen.round() is None  # and another's
        other.stop()
        again = frozen.round()
        assert again is not None and not again.is_judging
    finally:
        frozen.stop()
        other.stop()


def test_long_round_keeps_the_lock_while_postgres_answers(world: Sweeping, settings: Settings) -> None:
    class Long(Sweep):
        def run(self, now: float, ask: Callable[[], float] | None = None) -> Report:
            assert ask is not None
            while ask() < now + 0.6:
                sleep(0.05)
            return super().run(now, ask)

    sweep = Long(world.engine, world.redis, settings)
    sweeper = Sweeper(world.engine, sweep, sweep_seconds=0.01, idle_seconds=0.3)
    try:
        assert sweeper.round() is not None
    finally:
        sweeper.stop()


def test_fault_in_one_round_does_not_end_the_rounds(world: Sweeping, settings: Settings) -> None:
    second_round = threading.Event()

    class Faulty(Sweep):
        num_rounds = 0

        def run(self, now: float, ask: Callable[[], float] | None = None) -> Report:
            self.num_rounds += 1
            if self.num_rounds == 1:
                raise ZeroDivisionError
            second_round.set()
            return super().run(now, ask)

    sweeper = Sweeper(world.engine, Faulty(world.engine, world.redis, settings), sweep_seconds=0.01)
    sweeper.start()
    try:
        assert second_round.wait(20)
    finally:
        sweeper.stop()
