"""Headrace as it is used: the processes that `headrace up` starts, measured through the API."""

import time
from pathlib import Path

from tests.bench.speed.headrace import changes
from tests.bench.speed.http import HttpTarget
from tests.bench.speed.memory import PeakMemory
from tests.bench.speed.outcome import OnLine, Outcome, come_first, measure_target
from tests.bench.speed.plan import Plan
from tests.bench.stack import Stack, run_stack


def run_service(data_dir: Path, checkpoint: Path, precision: str, plan: Plan, on_line: OnLine) -> Outcome:
    """The outcome of the plan. Memory and the time to start are the worker's: the stores and the API run already."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with run_stack(**changes(data_dir, checkpoint, precision)) as stack:
        return _run_worker(stack, plan, on_line)


def _run_worker(stack: Stack, plan: Plan, on_line: OnLine) -> Outcome:
    outcome, began = Outcome(), time.perf_counter()
    with stack.worker() as worker, PeakMemory(worker.process.pid) as memory:
        outcome.startup_seconds = time.perf_counter() - began
        url = f"http://127.0.0.1:{stack.settings.port}"
        target = HttpTarget(url, stack.settings.served_name, key=stack.keys[0])
        with come_first():
            measure_target(target, plan, outcome, on_line)
    outcome.peak_megabytes = memory.megabytes
    return outcome
