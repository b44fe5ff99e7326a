"""`headrace up` as a user starts it, in a data directory and on ports of the test's own."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx

HEADRACE = str(Path(sys.executable).with_name("headrace"))
START_SECONDS = 150  # the real model is converted at the first start
STOP_SECONDS = 60


@dataclass
class Instance:
    """A running `headrace up`, seen from outside: its screen, its pid files, its API."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    screen_path: Path

    @property
    def screen(self) -> str:
        """Everything printed so far."""
        return self.screen_path.read_text()

    @property
    def run_dir(self) -> Path:
        return Path(self.environment["HEADRACE_DATA_DIR"]) / "run"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.environment['HEADRACE_PORT']}"

    @property
    def flower_url(self) -> str:
        return f"http://127.0.0.1:{self.environment['HEADRACE_FLOWER_PORT']}"

    def client(self) -> httpx.Client:
        """A client of the API with the key that the data directory keeps."""
        key = (self.run_dir.parent / "api-key").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=70)

    def line(self, beginning: str) -> str:
        """The line of the screen that begins so."""
        return next(line for line in self.screen.splitlines() if line.startswith(beginning))

    def pid(self, name: str) -> int:
        """The process id in `run/<name>.pid`; 0 while it is being written."""
        text = (self.run_dir / f"{name}.pid").read_text().strip()
        return int(text or 0)

    def pids(self) -> dict[str, int]:
        return {path.stem: self.pid(path.stem) for path in self.run_dir.glob("*.pid")}

    def wait_until_ready(self) -> None:
        """Return once the model answers."""
        wait_until(lambda: "Ready after" in self.screen or self.process.poll() is not None, seconds=START_SECONDS)
        assert self.process.poll() is None, self.screen

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def assert_stops(self, number: signal.Signals) -> None:
        """Signal it: it ends with code 0, and everything that it had started is gone."""
        pids = self.pids()
        assert self.stop(number) == 0
        assert [name for name, pid in pids.items() if is_running(pid)] == []
        assert self.pids() == {}
        assert self.screen.endswith("Stopped.\n")


@contextlib.contextmanager
def running(directory: Path, **settings: str) -> Iterator[Instance]:
    """A started instance; killed at the end if the test has not stopped it."""
    directory.mkdir(exist_ok=True)
    variables = environment(directory / "data", **settings)
    screen_path = directory / "screen.txt"
    with screen_path.open("wb") as screen:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", HEADRACE, "up"],
            env=variables,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Instance(process, variables, screen_path)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()  # nothing of it may work on in other tests' stores


def refusal(directory: Path, **settings: str) -> str:
    """What `headrace up` says when it ends at once with code 1: one line on standard error, and nothing else."""
    variables = environment(directory / "data") | settings
    done = subprocess.run([HEADRACE, "up"], env=variables, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    """The developer's environment without their settings, and with these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    ports = {"HEADRACE_PORT": str(free_port()), "HEADRACE_FLOWER_PORT": str(free_port())}
    return inherited | ports | {"HEADRACE_DATA_DIR": str(data_dir), "NO_PROXY": "127.0.0.1"} | settings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shell(line: str, directory: Path, **variables: str) -> str:
    """What a pasted line prints."""
    argv, env = ["sh", "-c", line], os.environ | variables
    done = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{shlex.quote(line)}: {done.stderr}"
    return done.stdout


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    """Return once it is so; fail the test when it does not come."""
    deadline = monotonic() + seconds
    while not is_so():
        assert monotonic() < deadline, "it did not come"
        sleep(0.05)


def served_model(client: httpx.Client) -> str:
    """The name under which the instance serves its model."""
    return str(client.get("/v1/models").json()["data"][0]["id"])


def flower(instance: Instance, path: str) -> dict[str, list[dict[str, object]]]:
    """What Flower's own API answers."""
    answer: dict[str, list[dict[str, object]]] = httpx.get(f"{instance.flower_url}/api/{path}", timeout=30).json()
    return answer
