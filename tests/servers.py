"""A PostgreSQL and a Valkey of the test run's own, which die with it, and what children need to find them."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import redis
from kombu import pools
from sqlalchemy import Engine, text

from db import embedded
from db.models import Base
from db.settings import Settings

START_SECONDS = 30
OLD_MEMORY, LAST_WORDS = "pre-existing shared memory block", 1000  # what PostgreSQL says of it, and where
SURVIVES_KILL = ("fsync=off", "full_page_writes=off", "max_connections=200")  # of processes, not of the machine
FAST = (*SURVIVES_KILL, "synchronous_commit=off")


@dataclass
class Server:
    """A server process that a test may kill and start again."""

    argv: list[str]
    prepare: Callable[[], None]  # before every start, as the product does
    is_ready: Callable[[], bool]
    stop_signal: signal.Signals
    log_path: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.prepare()
        deadline = monotonic() + START_SECONDS
        self._launch()
        while not self.is_ready():
            has_ended = self.process is not None and self.process.poll() is not None
            if has_ended and monotonic() < deadline and OLD_MEMORY in self.log_path.read_text()[-LAST_WORDS:]:
                self._launch()  # a killed one's children are on their way out
            elif has_ended or monotonic() > deadline:
                raise RuntimeError(f"{self.argv[0]} did not start:\n{self.log_path.read_text()}")
            sleep(0.01)

    def _launch(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self, with_signal: signal.Signals | None = None) -> None:
        """Stop it, or kill it, and wait for its end: a killed one blocks its successor until then."""
        assert self.process is not None
        self.process.send_signal(with_signal or self.stop_signal)
        self.process.wait(timeout=START_SECONDS)
        pools.reset()  # what Celery's clients in this process keep connected is stale now

    def kill(self) -> None:
        """As a crash would."""
        self.stop(signal.SIGKILL)


@dataclass(frozen=True)
class Servers:
    """Both servers; `settings` point at them. The database is empty."""

    postgres: Server
    valkey: Server
    settings: Settings


@contextlib.contextmanager
def run_servers(postgres_settings: Sequence[str] = FAST) -> Iterator[Servers]:
    """Servers in a new directory, removed at the end. Their data need not survive, so nothing waits for a disk."""
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    sockets = directory / "s"  # socket paths are short
    embedded.make_socket_dir(sockets)
    database_url = f"postgresql+psycopg://{embedded.DATABASE}@/{embedded.DATABASE}?host={sockets}"
    redis_url = f"unix://{sockets}/valkey.sock"
    settings = isolated_settings(directory / "data", database_url=database_url, redis_url=redis_url)
    options = [part for setting in postgres_settings for part in ("-c", setting)]
    postgres = Server(
        [*embedded.postgres_argv(directory, sockets), *options],
        partial(embedded.init_postgres, directory),
        lambda: embedded.is_postgres_ready(database_url),
        signal.SIGINT,
        directory / "postgres.log",
    )
    valkey = Server(
        embedded.valkey_argv(directory, sockets),
        partial(embedded.init_valkey, directory),
        lambda: embedded.is_redis_ready(redis_url),
        signal.SIGTERM,
        directory / "valkey.log",
    )
    try:
        postgres.start()
        valkey.start()
        yield Servers(postgres, valkey, settings)
    finally:
        for server in (postgres, valkey):
            if server.process is not None and server.process.poll() is None:
                server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def isolated_settings(data_dir: Path, *, database_url: str, redis_url: str) -> Settings:
    """Settings that know nothing of the developer's environment and `.env`."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HEADRACE_")}
    try:
        return Settings(_env_file=None, data_dir=data_dir, database_url=database_url, redis_url=redis_url)
    finally:
        os.environ.update(kept)


def environment(settings: Settings) -> dict[str, str]:
    """The environment in which a child process reads exactly these settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    values = settings.model_dump(mode="json", exclude_none=True)
    return inherited | {f"HEADRACE_{name.upper()}": str(value) for name, value in values.items()}


def empty(engine: Engine, client: redis.Redis) -> None:
    """Remove what the test before left. Few rows: deleting them is faster than truncating thirty tables."""
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(text(f"DELETE FROM {table.name}"))
    client.flushall()
