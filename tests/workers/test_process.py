"""Knowing one's own process, and whether a predecessor on the host still lives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import queue, stream
from db.models import Worker
from db.stream import Append, Token
from tests.workers.held_jobs import WORKER_ID, insert_running, insert_worker, make_held, row_of
from workers.predecessor import free_predecessors
from workers.process import ProcessIdentity, is_alive, this_process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_this_process_is_alive() -> None:
    identity = this_process()
    assert identity.pid == os.getpid()
    assert is_alive(identity.pid, identity.pid_started)


def test_a_reused_pid_is_not_the_process_that_had_it() -> None:
    identity = this_process()
    assert not is_alive(identity.pid, identity.pid_started - 1)


def test_a_killed_process_is_dead_before_its_parent_has_noticed(child: subprocess.Popen[bytes]) -> None:
    started = started_of(child.pid)
    assert is_alive(child.pid, started)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, not yet reaped
    assert not is_alive(child.pid, started)


def started_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])


def insert_worker_of(engine: Engine, identity: ProcessIdentity) -> None:
    insert_worker(engine, host=identity.host, pid=identity.pid, pid_started=identity.pid_started)


def test_a_dead_predecessor_is_freed_at_once_and_charged_only_without_progress(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path
) -> None:
    identity = this_process()
    insert_worker_of(engine, ProcessIdentity(identity.host, identity.pid, identity.pid_started - 1))
    progressed, stuck = make_held(), make_held()
    for held in (progressed, stuck):
        insert_running(engine, held)
        stream.open(redis_client, held.job_id, 1, WORKER_ID)
    stream.append_many(redis_client, [Append(progressed.job_id, 1, WORKER_ID, 0, [Token(1, "x")])])
    assert free_predecessors(engine, redis_client, tmp_path) == 2
    rows = [row_of(engine, held) for held in (progressed, stuck)]
    assert [(row.status, row.worker_id, row.crashes) for row in rows] == [("queued", None, 0), ("queued", None, 1)]
    assert queue.depths(redis_client, "m") == {0: 0, 1: 2, 2: 0}
    with Session(engine) as session:
        assert session.get_one(Worker, WORKER_ID).status == "lost"


def test_a_live_neighbour_and_another_hosts_worker_keep_their_jobs(
    engine: Engine, redis_client: redis.Redis, tmp_path: Path
) -> None:
    insert_worker_of(engine, this_process())
    held = make_held()
    insert_running(engine, held)
    assert free_predecessors(engine, redis_client, tmp_path) == 0
    assert row_of(engine, held).status == "running"
