"""The tasks worker as a real process: beat's messages in, webhooks and repairs out, and a clean end."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from db import partitions, queue
from db.broker import make_app, tasks_worker_argv
from db.partitions import Day
from db.settings import Settings
from tests.receiver import Delivery, Say, receiver
from tests.servers import environment
from tests.workers.worker_process import PATIENCE_SECONDS, wait_until
from tests.workers.world import MODEL, World


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis) -> World:
    return World(engine, redis_client)


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Settings of a worker that sweeps all the time and delivers to this machine."""
    return settings.model_copy(update={"sweep_seconds": 0.05, "lease_seconds": 1.0, "webhook_allow_private": True})


@contextmanager
def tasks_worker(settings: Settings, log_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`headrace tasks`, killed at the end unless the test stopped it."""
    program, *arguments = tasks_worker_argv(settings)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *arguments],
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def stop(process: "subprocess.Popen[bytes]") -> int:
    """A warm stop; returns the exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=PATIENCE_SECONDS)


def num_locks(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one())


def has_table(engine: Engine, name: str) -> bool:
    with engine.connect() as connection:
        return connection.execute(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": name}).scalar_one() is True


def make_old_partition(engine: Engine, day: datetime) -> str:
    """A day of `jobs` long beyond retention; returns its table's name."""
    partition = Day("jobs", day)
    first, past = partition.bounds["first"], partition.bounds["past"]
    with Session(engine) as session, session.begin():
        session.execute(
            text(f"CREATE TABLE {partition.name} PARTITION OF jobs FOR VALUES FROM ('{first}') TO ('{past}')")
        )
    return partition.name


def test_tasks_worker_delivers_keeps_partitions_sweeps_and_ends_cleanly(
    world: World, quick: Settings, tmp_path: Path
) -> None:
    app = make_app(quick)
    worker_id = world.add_worker()
    lost = world.add_job(ready_at=world.now() - 60)
    world.claim(worker_id, lost)  # by a worker that never renews its lease: it lasts one second
    old = make_old_partition(world.engine, datetime(2020, 1, 1, tzinfo=UTC))
    newest = Day("jobs", datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=7)).name
    with Session(world.engine) as session, session.begin():
        partitions.ensure(session, days_ahead=7)
        session.execute(text(f"DROP TABLE {newest}"))

    with receiver() as endpoint, tasks_worker(quick, tmp_path / "tasks.log") as process:
        world.finished_jobs(endpoint.url)
        for task in ("deliver_due", "maintain_partitions", "drop_expired"):
            app.send_task(task)
        assert endpoint.next().headers["webhook-id"].startswith("evt_")
        wait_until(lambda: has_table(world.engine, newest), "the missing partition")
        wait_until(lambda: not has_table(world.engine, old), "the old partition to go")
        wait_until(lambda: queue.depths(world.redis, MODEL)[1] == 1, "the lost worker's job")
        assert stop(process) == 0
    assert num_locks(world.engine) == 0
    assert world.pop_all() == [lost]
    assert "Traceback" not in (tmp_path / "tasks.log").read_text()


def test_stopping_tasks_worker_finishes_the_delivery_under_way(world: World, quick: Settings, tmp_path: Path) -> None:
    process: subprocess.Popen[bytes]
    stopping = threading.Event()

    def answer(delivery: Delivery) -> Say:
        process.send_signal(signal.SIGTERM)
        stopping.set()
        wait_until(lambda: num_locks(world.engine) == 0, "the worker to be on its way out")
        return Say()

    with receiver(answer) as endpoint, tasks_worker(quick, tmp_path / "tasks.log") as process:
        [job_id] = world.finished_jobs(endpoint.url)
        make_app(quick).send_task("deliver_due")
        assert stopping.wait(PATIENCE_SECONDS)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert world.delivery(job_id).status == "delivered"


def test_tasks_worker_outlives_cut_connections_to_both_stores(world: World, quick: Settings, tmp_path: Path) -> None:
    world.add_worker()
    with receiver() as endpoint, tasks_worker(quick, tmp_path / "tasks.log") as process:
        wait_until(lambda: num_locks(world.engine) == 1, "the sweep")
        with world.engine.connect() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            )
        world.redis.client_kill_filter(_type="normal", skipme=True)
        world.add_job(ready_at=world.now() - 60)
        wait_until(lambda: queue.depths(world.redis, MODEL)[1] == 1, "the sweep to repair again")
        world.finished_jobs(endpoint.url)
        make_app(quick).send_task("deliver_due")
        endpoint.next()
        assert stop(process) == 0
