"""Processor time by process: what a figure costs also on a machine that others use at the same time."""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CLIENT = "client"  # the process that measures
TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of(pids: Mapping[str, int]) -> dict[str, float]:
    """Of each named process and all its descendants, those included that have ended, since their start."""
    times, children = dict[int, float](), defaultdict[int, list[int]](list)
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            times[int(directory.name)] = sum(map(int, fields[11:15])) / TICKS  # itself, and children it waited for
            children[int(fields[1])].append(int(directory.name))

    def total(pid: int) -> float:
        return times.get(pid, 0.0) + sum(map(total, children[pid]))

    found = {name: total(pid) for name, pid in pids.items()}
    if CLIENT in found:  # the others' parent
        found[CLIENT] = time.process_time()
    return found


def per_job(before: Mapping[str, float], after: Mapping[str, float], num_jobs: int) -> str:
    """As text: milliseconds of each process for one job, and in all."""
    spent = {name: (after[name] - before[name]) / num_jobs * 1000 for name in after}
    parts = ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in spent.items())
    return f"{sum(spent.values()):.2f} ms: {parts}"
