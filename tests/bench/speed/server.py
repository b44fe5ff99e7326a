"""A peer that is a server: started, measured through HTTP, and ended with all that it started."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx

from tests.bench.speed.http import HttpTarget
from tests.bench.speed.memory import PeakMemory
from tests.bench.speed.outcome import OnLine, Outcome, come_first, measure_target
from tests.bench.speed.plan import Plan
from tests.bench.stack import free_port

START_SECONDS = 600.0
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.25


class DidNotStart(Exception):
    """A server ended, or did not answer in time; the message has its last words."""


@dataclass(frozen=True)
class Server:
    """How to start it. `argv` makes the command from a port and the name under which the model is to be served."""

    argv: Callable[[int, str], Sequence[str | Path]]
    environment: Mapping[str, str] = field(default_factory=dict)


def run_server(server: Server, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
    """The outcome of the plan. The served name is new each time, so that no other server can answer in its place.

    Raises DidNotStart.
    """
    name, port = f"m-{uuid4().hex[:8]}", free_port()
    outcome, began = Outcome(), time.perf_counter()
    with _started(server, port, name, log) as process, PeakMemory(process.pid) as memory:
        _wait_healthy(process, port, log)
        outcome.startup_seconds = time.perf_counter() - began
        with come_first():
            measure_target(HttpTarget(f"http://127.0.0.1:{port}", name), plan, outcome, on_line)
    outcome.peak_megabytes = memory.megabytes
    return outcome


@contextlib.contextmanager
def _started(server: Server, port: int, name: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            server.argv(port, name),
            env=os.environ | server.environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it and those it started, which are in the group that was made for it."""
    for each in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _wait_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _is_healthy(port):
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise DidNotStart(f"did not start: {''.join(last)[:200]}")
        time.sleep(LOOK_SECONDS)


def _is_healthy(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
    return False
