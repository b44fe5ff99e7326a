"""What the benchmark measures: durable stores, one API process and one engine worker, each as `headrace` starts it."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import redis
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from db import migrate
from db.keys import create_key
from db.session import make_engine, make_redis
from db.settings import Settings
from tests.bench import counters, null_model, processor
from tests.bench.counters import Counts
from tests.servers import environment, run_servers
from tests.workers.worker_process import PATIENCE_SECONDS, WorkerProcess, wait_until

NUM_KEYS = 16  # each has a window of 64 ready jobs; what is beyond is parked
LOOK_SECONDS = 0.25

DONE = text("""
    SELECT count(*) FILTER (WHERE ended_at IS NOT NULL) AS num_ended, count(*) AS num_jobs,
           min(started_at) AS started_at, max(ended_at) AS ended_at
    FROM jobs WHERE created_at >= :since
""")


@dataclass(frozen=True)
class Done:
    """How far the jobs of one measurement are."""

    num_jobs: int
    num_ended: int
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def seconds(self) -> float:
        """From the first claim to the last end."""
        assert self.started_at is not None and self.ended_at is not None
        return (self.ended_at - self.started_at).total_seconds()


@dataclass
class Stack:
    """The processes and ways to look at what they did."""

    settings: Settings
    engine: Engine
    redis: redis.Redis
    keys: Sequence[str]
    pids: dict[str, int]  # of the processes that run; the worker's while there is one

    def processor_seconds(self) -> dict[str, float]:
        """What each process has used so far."""
        return processor.seconds_of(self.pids)

    def counts(self) -> Counts:
        return counters.read(self.engine, self.redis)

    def now(self) -> datetime:
        """The Postgres clock."""
        with self.engine.connect() as connection:
            moment: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        return moment

    def done(self, since: datetime) -> Done:
        """Of the jobs submitted since then."""
        with self.engine.begin() as connection:
            row = connection.execute(DONE, {"since": since}).one()
        return Done(row.num_jobs, row.num_ended, row.started_at, row.ended_at)

    def wait_done(self, since: datetime) -> Done:
        """The same, once all of them have ended. Looked for seldom: looking takes time from what is measured."""
        while (found := self.done(since)).num_ended < found.num_jobs:
            time.sleep(LOOK_SECONDS)
        return found

    @contextlib.contextmanager
    def worker(
        self, *, app: str = "workers.app", patience_seconds: float = PATIENCE_SECONDS
    ) -> Iterator[WorkerProcess]:
        """An engine worker that is ready; drained at the end."""
        since = self.now()
        with WorkerProcess(self.settings, self.settings.data_dir / "worker.log", app=app) as worker:
            wait_until(lambda: self._is_ready(since), "the worker to be ready", patience_seconds=patience_seconds)
            self.pids["worker"] = worker.process.pid
            yield worker
            del self.pids["worker"]
            worker.terminate()

    def _is_ready(self, since: datetime) -> bool:
        statement = text("SELECT 1 FROM workers WHERE status = 'ready' AND started_at >= :since")
        with self.engine.connect() as connection:
            return connection.execute(statement, {"since": since}).first() is not None


@contextlib.contextmanager
def run_stack(**changes: Any) -> Iterator[Stack]:
    """Both stores, as durable as in production, and one API process; `changes` are further settings."""
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as name, run_servers(counters.POSTGRES_OPTIONS) as servers:
        directory = Path(name)
        values = {
            "data_dir": directory,
            "model": str(null_model.make_null_checkpoint(directory / null_model.NAME)),
            "model_name": null_model.NAME,
            "num_threads": 1,
            "port": free_port(),
        }
        settings = servers.settings.model_copy(update=values | changes)
        migrate.upgrade(settings)
        engine, client = make_engine(settings), make_redis(settings)
        counters.prepare(engine)
        with Session(engine) as session, session.begin():
            keys = [create_key(session, tenant="bench", name=str(n), scopes=["*"]) for n in range(NUM_KEYS)]
        assert servers.postgres.process is not None and servers.valkey.process is not None
        with _api(settings) as api:
            pids = {"API": api.pid, "Postgres": servers.postgres.process.pid, "Valkey": servers.valkey.process.pid}
            yield Stack(settings, engine, client, keys, pids | {processor.CLIENT: os.getpid()})
        client.close()
        engine.dispose()


@contextlib.contextmanager
def _api(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(sys.executable).with_name("headrace")
    with (settings.data_dir / "api.log").open("ab") as log:
        api = subprocess.Popen([program, "api"], env=environment(settings), stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(settings.port), "the API to answer")
        yield api
    finally:
        api.terminate()
        api.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/healthz").is_success
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
