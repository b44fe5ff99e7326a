"""The processes of one small installation, each of which can be killed: both stores, two APIs, two engine workers on a
tiny model, two tasks workers, two that run batches, and beat. Half of them reach the stores over links that can be
cut."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from api.up.database import Database
from db import embedded
from db.broker import engine_worker_argv, make_app, tasks_worker_argv
from db.session import make_redis
from db.settings import Settings
from tests.chaos.link import Link
from tests.chaos.process import Process, beside_python
from tests.checkpoints import make_checkpoint
from tests.servers import SURVIVES_KILL, Servers, environment, run_servers

MODEL = "tiny"
NUM_EACH = 2
START_SECONDS = 120
ANSWER_SECONDS = 10  # to an inspection, at most
SUPERVISE_SECONDS = 0.3
KEY = "hr_chaos-key-of-the-storm"
SKEWED_DIR = Path(__file__).parent / "skewed"
CLOCK_SECONDS = 3600.0  # how far the second engine worker's clock is ahead
SETTINGS: dict[str, Any] = {
    "model_name": MODEL,
    "api_key": KEY,
    "dtype": "float32",
    "num_threads": 1,
    "max_num_seqs": 6,
    "kv_cache_tokens": 8192,
    "lease_seconds": 3.0,
    "renew_seconds": 1.0,
    "sweep_seconds": 1.0,
    "drain_seconds": 5.0,
    "webhook_allow_private": True,
}


class World:
    """The processes by name. `under_fault` are those that a fault keeps down; the others are started when they die."""

    def __init__(self, servers: Servers, settings: Settings, links: list[Link]) -> None:
        self.servers = servers
        self.settings = settings
        self.links = {link.name: link for link in links}
        self.ports = [_free_port() for _ in range(NUM_EACH)]
        self.processes = {process.name: process for process in self._make_processes()}
        self.under_fault: set[str] = set()  # written by the faults alone
        self.engine = make_audit_engine(settings)
        self.redis = make_redis(settings)

    @property
    def urls(self) -> list[str]:
        """Of the APIs."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def copy_logs(self, directory: Path) -> None:
        """Keep what the processes have written."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in (*self.settings.data_dir.glob("*.log"), *self.settings.data_dir.parent.glob("*.log")):
            shutil.copy(path, directory)

    async def start(self) -> None:
        """Start everything and return when jobs can run."""
        for process in self.processes.values():
            process.start()
        await wait_until(self.is_ready, "everything to start", START_SECONDS)

    async def is_ready(self) -> bool:
        """Whether both engine workers are ready and both APIs answer."""
        sql = "SELECT count(*) FROM workers WHERE status = 'ready' AND renewed_at > clock_timestamp() - interval '3 s'"
        num_ready = await asyncio.to_thread(self.ask, sql)
        if num_ready is None or num_ready < NUM_EACH:
            return False
        async with httpx.AsyncClient(timeout=3) as client:
            for url in self.urls:
                try:
                    (await client.get(f"{url}/readyz")).raise_for_status()
                except httpx.HTTPError:
                    return False
        return True

    async def supervise(self) -> None:
        """Start again what died by itself, as `headrace up` does; runs until it is cancelled."""
        while True:
            await asyncio.sleep(SUPERVISE_SECONDS)
            for process in self.processes.values():
                if process.name not in self.under_fault and not process.is_alive:
                    assert process.process is not None
                    process.deaths.append(process.process.returncode)
                    print(f"         {process.name} ended by itself with {process.process.returncode}", flush=True)
                    process.start()

    def ask(self, sql: str) -> Any:
        """One value from Postgres; None when it is away."""
        try:
            with self.engine.connect() as connection:
                return connection.execute(text(sql)).scalar()
        except SQLAlchemyError:
            return None

    def change(self, sql: str) -> None:
        """Change what only the clock would."""
        with self.engine.begin() as connection:
            connection.execute(text(sql))

    def inspect(self) -> dict[str, dict[str, Any]]:
        """What each engine worker's pool says of itself, by node name; one that does not answer is left out."""
        app = make_app(self.settings)
        names = [f"engine-{MODEL}@{number}.{socket.gethostname()}" for number in range(1, NUM_EACH + 1)]
        with app.connection_for_read() as connection:
            stats = app.control.inspect(names, timeout=ANSWER_SECONDS, connection=connection).stats() or {}
        return {name: answer["pool"] for name, answer in stats.items()}

    def restart_postgres(self) -> None:
        """Start a killed one: what is left of its processes may keep it from starting for a moment."""
        deadline = monotonic() + START_SECONDS
        embedded.init_postgres(self.settings.data_dir.parent)
        while True:
            try:
                self.servers.postgres.start()
                return
            except RuntimeError:
                if monotonic() > deadline:
                    raise

    def close(self) -> None:
        """Kill what runs."""
        for process in self.processes.values():
            process.kill()
        self.engine.dispose()
        self.redis.close()

    def _make_processes(self) -> list[Process]:
        far = self._over_links()
        made = []
        for number, port in enumerate(self.ports, 1):
            settings = self.settings if number == 1 else far
            celery = [
                (f"engine-{number}", engine_worker_argv(settings)),
                (f"tasks-{number}", tasks_worker_argv(settings)),
            ]
            for name, argv in celery:
                argv = [beside_python(argv[0]), *(part.replace("@%h", f"@{number}.%h") for part in argv[1:])]
                made.append(self._process(name, argv, settings))
            api_settings = settings.model_copy(update={"port": port})
            made.append(self._process(f"api-{number}", [beside_python("headrace"), "api"], api_settings))
            made.append(self._process(f"batches-{number}", [beside_python("headrace"), "batches"], settings))
        made.append(self._process("beat", [beside_python("headrace"), "beat"], self.settings))
        return made

    def _over_links(self) -> Settings:
        postgres, redis = (self.links[name].port for name in ("postgres-link", "valkey-link"))
        database_url = f"postgresql+psycopg://{embedded.DATABASE}@127.0.0.1:{postgres}/{embedded.DATABASE}"
        changes = {"database_url": database_url, "redis_url": f"redis://127.0.0.1:{redis}/0"}
        return self.settings.model_copy(update=changes)

    def _process(self, name: str, argv: list[str], settings: Settings) -> Process:
        env = environment(settings) | {"OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        if name == "engine-2":
            path = os.pathsep.join([str(SKEWED_DIR), *filter(None, [env.get("PYTHONPATH")])])
            env |= {"PYTHONPATH": path, "CHAOS_CLOCK_SECONDS": str(CLOCK_SECONDS)}
        return Process(name, argv, env, self.settings.data_dir / f"{name}.log")


@asynccontextmanager
async def running_world(*, logs: Path | None = None) -> AsyncIterator[World]:
    """A started world; nothing of it is left at the end, but for copies of its logs in the directory `logs`."""
    with run_servers(SURVIVES_KILL) as servers:
        servers.settings.data_dir.mkdir()
        model = make_checkpoint(servers.settings.data_dir / MODEL)
        settings = servers.settings.model_copy(update=SETTINGS | {"model": str(model)})
        # So that a full disk is an error that Valkey sees, not a signal that ends it.
        servers.valkey.argv[:0] = ["env", "--ignore-signal=XFSZ"]
        servers.valkey.stop()
        servers.valkey.start()
        sockets = servers.settings.data_dir.parent / "s"
        links = [Link("postgres-link", sockets / ".s.PGSQL.5432"), Link("valkey-link", sockets / "valkey.sock")]
        for link in links:
            await link.open()
        world = World(servers, settings, links)
        with Database(settings) as database:
            database.prepare()
        try:
            await world.start()
            yield world
        finally:
            world.close()
            if logs is not None:
                world.copy_logs(logs)
            for link in links:
                await link.close()


def make_audit_engine(settings: Settings) -> Engine:
    """Connections of our own, past the links."""
    return create_engine(settings.resolved_database_url, pool_pre_ping=True, connect_args={"connect_timeout": 5})


async def wait_until(is_so: Callable[[], Any], what: str, seconds: float) -> None:
    """Return once the coroutine function answers true; TimeoutError names what did not come."""
    deadline = monotonic() + seconds
    while not await is_so():
        if monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        await asyncio.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
