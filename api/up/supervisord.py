"""supervisord as a child of ours, spoken to over its socket. It starts processes again; we say when each may start."""

import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ProtocolError, ServerProxy

from supervisor.xmlrpc import SupervisorTransport

LONGEST_PAUSE_SECONDS = (
    15  # between two starts of a process that keeps dying; supervisord's own pause grows without end
)
START_SECONDS = 20
SUPERVISORD = (sys.executable, "-m", "supervisor.supervisord")


class SupervisordGone(Exception):
    """supervisord has died, and with it everything that it ran."""


@dataclass(frozen=True)
class Process:
    """One process as supervisord sees it."""

    name: str
    state: str  # STOPPED | STARTING | RUNNING | BACKOFF | STOPPING | EXITED | FATAL | UNKNOWN
    pid: int  # 0 when there is none

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it is left."""
        return self.state in ("STOPPED", "EXITED", "FATAL")


class Supervisord:
    """Starts supervisord on entry; on leaving, kills it and whatever was not stopped before."""

    def __init__(self, run_dir: Path, socket: Path, environment: dict[str, str]) -> None:
        self.run_dir = run_dir
        self.environment = environment
        self.socket = socket
        self.paused_since: dict[str, float] = {}  # names in BACKOFF; written by processes()

    def __enter__(self) -> "Supervisord":
        # A session of its own: Ctrl-C is for us, and we stop the others in order.
        self.child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *SUPERVISORD, "-c", "supervisord.conf"],
            cwd=self.run_dir,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait()

    def wait_until_up(self) -> None:
        """Return once it answers; raise SupervisordGone when it does not."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.child.poll() is None:
            try:
                self._server().getState()
                return
            except (OSError, HTTPException):
                time.sleep(0.05)
        raise SupervisordGone(f"supervisord did not start; see {self.run_dir / 'supervisord.log'}")

    def start(self, name: str) -> None:
        """Start a program, and start it again whenever it dies."""
        self._call("startProcess", name, False)

    def processes(self) -> list[Process]:
        """Every program's state now; also shortens the pause of those that keep dying."""
        found = [Process(one["name"], one["statename"], one["pid"]) for one in self._call("getAllProcessInfo") or []]
        for process in found:
            self._limit_pause(process)
        return found

    def stop(self, name: str) -> None:
        """Ask a program to stop, for good; returns at once."""
        self._call("stopProcess", name, False)

    @property
    def has_exited(self) -> bool:
        """Whether supervisord is gone."""
        return self.child.poll() is not None

    def _limit_pause(self, process: Process) -> None:
        if process.state != "BACKOFF":
            self.paused_since.pop(process.name, None)
        elif time.monotonic() - self.paused_since.setdefault(process.name, time.monotonic()) > LONGEST_PAUSE_SECONDS:
            self.stop(process.name)
            self.start(process.name)

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._server(), method)(*args)
        except Fault:  # it is starting, stopping or gone already: the state says so in the next round
            return None
        except (OSError, HTTPException, ProtocolError) as error:
            raise SupervisordGone(f"supervisord died; see {self.run_dir / 'supervisord.log'}") from error

    def _server(self) -> Any:
        # A transport is of no use once a call of it has failed, so each call has its own.
        return ServerProxy("http://127.0.0.1", SupervisorTransport(None, None, f"unix://{self.socket}")).supervisor
