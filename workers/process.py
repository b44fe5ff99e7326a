"""Who this process is, in words that a successor on the same host can check."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """`host` names the machine, its boot and its pid namespace; only there do `pid` and `pid_started` mean anything."""

    host: str
    pid: int
    pid_started: int  # clock ticks after boot; tells a reused pid apart


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(host=_host(), pid=pid, pid_started=_start_ticks(pid) or 0)


def is_alive(pid: int, pid_started: int) -> bool:
    """Whether the process that had this pid and start time still runs. Meaningful on its own host only."""
    if not Path("/proc/self/stat").exists():
        return _answers_signals(pid)
    return _start_ticks(pid) == pid_started


def _host() -> str:
    boot, namespace = "", ""
    if Path("/proc/self/ns/pid").exists():
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return "/".join(part for part in (socket.gethostname(), boot, namespace) if part)


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; None for a process that is gone or a zombie, which runs no more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces; fields[0] is the third, the state
    return None if fields[0] in "ZX" else int(fields[19])


def _answers_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
