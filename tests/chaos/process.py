"""One of Headrace's processes as a child that faults may kill, pause and start again."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

STOP_SECONDS = 30


@dataclass
class Process:
    """A child that dies with the storm. `deaths` are ends that nobody here caused."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: list[int] = field(default_factory=list)  # exit codes

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.is_alive:
            return
        argv = ["setpriv", "--pdeathsig", "KILL", *self.argv]
        with self.log_path.open("ab") as log:
            log.write(b"--- started\n")
            log.flush()
            self.process = subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        if self.is_alive:
            self.signal(signal.SIGKILL)
            assert self.process is not None
            self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """End it as a scheduler does, or by force where that takes too long."""
        if not self.is_alive:
            return
        assert self.process is not None
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that is gone gets none."""
        assert self.process is not None
        self.process.send_signal(number)


def beside_python(program: str) -> str:
    """The console script of this environment."""
    return str(Path(sys.executable).with_name(program))


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and its children: PostgreSQL works in those. Those that are gone get none."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)  # first: a stopped one makes no more children
    for child in children(pid):
        with suppress(ProcessLookupError):
            os.kill(child, number)


def children(pid: int) -> list[int]:
    """The process ids of the direct children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def num_fds(pid: int) -> int:
    """Open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit_file_size(pid: int, num_bytes: int | None) -> None:
    """Let the process write no file beyond that size, as on a full disk; None: let it again."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if num_bytes is None else num_bytes, hard))
