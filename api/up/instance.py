"""One running instance: starts its processes in the order of what each needs, watches them, stops them the other way.

It imports none of what it runs, and sees it as anybody would: through supervisord, the stores and the API.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import httpx

from api.up import checks
from api.up.checks import Refused
from api.up.database import Database
from api.up.log_tail import LogTail
from api.up.programs import EMBEDDED, Program, programs
from api.up.screen import Screen, Welcome
from api.up.signals import StopSignals
from api.up.supervisord import Process, Supervisord, SupervisordGone
from db import embedded
from db.keys import FirstKey
from db.models import Worker
from db.settings import Settings

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60  # with a server that does not answer
MAX_DEATHS = 3  # what died this often before the first answer will not do better


class Instance:
    """Everything that `headrace up` started, and the screen that tells of it."""

    def __init__(
        self, settings: Settings, run_dir: Path, supervisord: Supervisord, screen: Screen, signals: StopSignals
    ) -> None:
        self.settings = settings
        self.run_dir = run_dir
        self.supervisord = supervisord
        self.screen = screen
        self.signals = signals
        self.programs = programs(settings)
        self.pids: dict[str, int] = {}  # of each process when last seen; written by _look
        self.num_starts: dict[str, int] = {}  # written by _look
        self.logs = {program.name: LogTail(run_dir / f"{program.name}.log") for program in self.programs}

    def start(self) -> None:
        """Start everything, and return once the model answers; raises Refused when that cannot be."""
        started_at = time.monotonic()
        self.supervisord.wait_until_up()
        self._start_stores()
        with Database(self.settings) as database:
            self.screen.wait_for("Preparing the database")
            key = database.prepare()
            for program in self.programs:
                if program.name not in EMBEDDED:
                    self.supervisord.start(program.name)
            self._await("Starting the API", "api", lambda: _is_ok(f"{checks.api_url(self.settings)}/healthz"))
            self._show_worker(database, key)
        self.screen.stop_waiting()
        self.screen.say(f"Ready after {time.monotonic() - started_at:.0f} s. Ctrl-C drains and stops.")
        if warning := self.logs["worker"].last_warning():
            self.screen.say(f"The engine worker warns: {warning}")

    def watch(self) -> None:
        """Say what dies and is started again, for ever; raises SupervisordGone when supervisord died."""
        while True:
            before = dict(self.pids)
            for process in self._look():
                if process.pid and before.get(process.name, process.pid) != process.pid:
                    log = self.settings.data_dir / "run" / f"{process.name}.log"
                    self.screen.say(
                        f"{time.strftime('%H:%M:%S')}  {process.name} died and was started again; see {log}"
                    )
            self.signals.pause(POLL_SECONDS)

    def stop(self) -> None:
        """Stop everything, stage by stage: the workers drain while the API still delivers their tokens."""
        self.screen.stop_waiting()
        for _, stage in groupby(sorted(self.programs, key=_stage, reverse=True), key=_stage):
            names = [program.name for program in stage]
            self.screen.wait_for(f"Stopping {', '.join(names)}", self._stop_note(names))
            for name in names:
                self.supervisord.stop(name)
            while any(not process.is_stopped for process in self.supervisord.processes() if process.name in names):
                self.signals.pause(POLL_SECONDS)
        self.screen.stop_waiting()

    def _start_stores(self) -> None:
        settings = self.settings
        if settings.database_url is None:
            self.screen.wait_for("Starting PostgreSQL")
            try:
                embedded.init_postgres(settings.data_dir.resolve())
            except (embedded.EmbeddedMissing, embedded.InitFailed) as error:
                raise Refused(str(error)) from error
        for program in self.programs:
            if program.name in EMBEDDED:
                self.supervisord.start(program.name)
        database_url, redis_url = settings.resolved_database_url, settings.resolved_redis_url
        self._await("Waiting for PostgreSQL", "postgres", lambda: embedded.is_postgres_ready(database_url))
        self._await("Waiting for Valkey", "valkey", lambda: embedded.is_redis_ready(redis_url))

    def _await(self, what: str, name: str, is_done: Callable[[], bool]) -> None:
        """Wait for a server; raise Refused when it is away for too long. One of ours may take its time."""
        last_seen = time.monotonic()
        while not is_done():
            self.screen.wait_for(what, self._last_line(name))
            self._check_deaths(name)
            if any(process.name == name and process.state == "RUNNING" for process in self._look()):
                last_seen = time.monotonic()
            if time.monotonic() - last_seen > PATIENCE_SECONDS:
                advice = "" if name in self.logs else "; check HEADRACE_DATABASE_URL and HEADRACE_REDIS_URL"
                raise Refused(f"{what}: no answer for {PATIENCE_SECONDS} s{advice}")
            self.signals.pause(POLL_SECONDS)

    def _show_worker(self, database: Database, key: FirstKey) -> None:
        """Print the screen once jobs for the model are taken, and return once it runs them."""
        is_shown = False
        while True:
            self._look()
            worker = database.worker(self.pids.get("worker"))
            if worker is not None and not is_shown:
                self.screen.welcome(self._welcome(worker, key))
                is_shown = True
            if worker is not None and worker.status == "ready":
                return
            self._check_deaths("worker")
            what = "Starting the engine worker" if worker is None else f"Loading {worker.model}"
            self.screen.wait_for(what, self._last_line("worker"))
            self.signals.pause(POLL_SECONDS)

    def _welcome(self, worker: Worker, key: FirstKey) -> Welcome:
        return Welcome(
            version=version("headrace"),
            api_url=checks.api_url(self.settings),
            flower_url=checks.flower_url(self.settings),
            data_dir=self.settings.data_dir,
            api_key=key.key,
            webhook_secret=key.webhook_secret,
            model=worker.model,
            max_model_len=worker.max_model_len,
        )

    def _check_deaths(self, name: str) -> None:
        num_deaths = self.num_starts.get(name, 0) - 1
        error = self.logs[name].last_error() if num_deaths > 0 else None
        if error is not None or num_deaths >= MAX_DEATHS:  # one that says why will say it again
            raise Refused(f"{name} cannot start: {error or self._last_line(name)}")

    def _look(self) -> list[Process]:
        if self.supervisord.has_exited:
            raise SupervisordGone("supervisord died, and everything with it")
        processes = self.supervisord.processes()
        for process in processes:
            if process.pid and self.pids.get(process.name) != process.pid:
                self.pids[process.name] = process.pid
                self.num_starts[process.name] = self.num_starts.get(process.name, 0) + 1
        return processes

    def _stop_note(self, names: list[str]) -> str:
        if "worker" not in names:
            return ""
        return f"running jobs have {self.settings.drain_seconds:.0f} s to end; Ctrl-C again leaves at once"

    def _last_line(self, name: str) -> str:
        return self.logs[name].last_line() if name in self.logs else ""  # a server elsewhere has no log here


def _stage(program: Program) -> int:
    return program.stop_stage


def _is_ok(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False
