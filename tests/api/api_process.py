"""`headrace api` as the process it is, on a port of its own, to be killed and started again."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import httpx

from db.settings import Settings
from tests.servers import environment


class ApiProcess:
    """Writes its log to `log`, one after the other."""

    def __init__(self, settings: Settings, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._variables = environment(settings.model_copy(update={"port": self.port})) | {"PYTHONPATH": os.getcwd()}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers; the test's timeout is the limit."""
        with self._log.open("ab") as stderr:
            argv = [sys.executable, "-m", "api.cli", "api"]
            self._process = subprocess.Popen(argv, env=self._variables, stderr=stderr)
        while self._process.poll() is None:
            try:
                httpx.get(f"{self.url}/healthz")
                return
            except httpx.TransportError:
                sleep(0.05)
        raise AssertionError("it ended by itself")

    def stop(self) -> None:
        """Ask it to end. Its log is whole then."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)

    def kill(self) -> None:
        """As a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def api_process(settings: Settings, log: Path) -> Iterator[ApiProcess]:
    """A process that answers, for the time of the block."""
    process = ApiProcess(settings, log)
    try:
        process.start()
        yield process
    finally:
        process.stop()
