"""What a process and its descendants take: memory at most, and processor time; and what all the others take."""

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_SECONDS = 0.5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class PeakMemory(threading.Thread):
    """The largest resident set of a process tree while this is entered; pages that are shared count in each process."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.megabytes = 0.0
        self._pid = pid
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        self.megabytes = max(self.megabytes, sum(map(_resident_bytes, tree(self._pid))) / 1e6)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self.join()


def foreign_seconds() -> float:
    """Processor seconds that the whole machine has used, less this process's and those of all it started."""
    user, nice, system, _, _, *interrupts = (int(word) for word in Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS - sum(map(_processor_seconds, tree(os.getpid())))


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields:
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for each in found:  # which grows
        found.extend(children[each])
    return found


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:  # it has ended meanwhile
        return 0


def _processor_seconds(pid: int) -> float:
    """Of the process and of its children that have ended."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / TICKS if fields else 0.0


def _stat(pid: int) -> list[str] | None:
    """What follows the name: the state, the parent, and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
