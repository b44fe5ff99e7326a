"""The command line beside the real API, on real stores, with a worker driven by hand."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import redis
import uvicorn
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from typer.testing import CliRunner, Result

from api.app import create_app
from api.cli import app
from db.keys import ensure_first_key
from db.settings import Settings, get_settings
from tests.api.hand_worker import HandWorker, make_card
from tests.checkpoints import tokenizer_json
from tests.servers import environment


@dataclass
class Server:
    """The API on a port of its own, which can be stopped and started again on the same one."""

    settings: Settings
    port: int = 0
    _uvicorn: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        api = create_app(self.settings)
        config = uvicorn.Config(api, port=self.port, log_level="critical", timeout_graceful_shutdown=0)
        self._uvicorn = uvicorn.Server(config)
        listening = config.bind_socket()
        self.port = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [listening]})
        self._thread.start()

    def stop(self) -> None:
        assert self._uvicorn is not None and self._thread is not None
        self._uvicorn.should_exit = True
        self._thread.join()


@dataclass
class World:
    """A served model, and the command line with the server's URL and key."""

    settings: Settings
    server: Server
    worker: HandWorker
    key: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return {"HEADRACE_URL": f"http://127.0.0.1:{self.server.port}", "HEADRACE_API_KEY": self.key}

    def run(self, *arguments: str, stdin: str | None = None, **variables: str) -> Result:
        """Run a command that needs nothing to happen meanwhile."""
        get_settings.cache_clear()
        try:
            return CliRunner().invoke(app, arguments, input=stdin, env=self.variables | variables)
        finally:
            get_settings.cache_clear()

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command as a process of its own, to make things happen while it runs."""
        # A shell starts what it runs in the background deaf to Ctrl-C, the test run perhaps among it.
        argv = ["env", "--default-signal=INT", sys.executable, "-m", "api.cli", *arguments]
        variables = environment(self.settings) | self.variables
        process = subprocess.Popen(argv, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def submit(self, *arguments: str) -> str:
        result = self.run("submit", "Hello", *arguments)
        assert result.exit_code == 0, result.stderr
        return result.stdout.strip()


@contextmanager
def run_world(settings: Settings, engine: Engine, client: redis.Redis, directory: Path) -> Iterator[World]:
    """A world for one test. Whatever command still runs at its end is killed."""
    (directory / "tokenizer.json").write_text(tokenizer_json(512))
    worker = HandWorker(engine, client, make_card(str(directory / "tokenizer.json")))
    worker.register()
    with Session(engine) as session, session.begin():
        key = ensure_first_key(session, settings).key
    world = World(settings, Server(settings), worker, key)
    world.server.start()
    try:
        yield world
    finally:
        world.server.stop()
        for process in world.processes:
            process.kill()
            process.communicate()


def read_text(stream: IO[str] | None, text: str) -> None:
    """Read exactly `text`, waiting for it to be written."""
    assert stream is not None
    assert stream.read(len(text)) == text


def finish(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """The rest of stdout and stderr, and the exit code."""
    stdout, stderr = process.communicate(timeout=60)
    return stdout or "", stderr, process.returncode
