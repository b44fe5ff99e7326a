"""What came of measuring one target."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tests.bench.speed.load import Run, Target, run_all
from tests.bench.speed.memory import foreign_seconds
from tests.bench.speed.metrics import Figures, measure
from tests.bench.speed.plan import Plan

BRIEF = ("out_tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms", "itl_during_p99_ms", "long_ttft_ms", "num_bad")
CLIENT_PRIORITY = -10  # servers spin on every core: without it the client's clock is read late

OnLine = Callable[[str], None]


@dataclass
class Outcome:
    """Figures by workload, and what it took to have them. With `error` it could not be measured, or not to the end."""

    peak_megabytes: float = 0.0
    startup_seconds: float = 0.0
    figures: dict[str, Figures] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # of jobs
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        return cls(**data)


def measure_target(target: Target, plan: Plan, outcome: Outcome, on_line: OnLine) -> None:
    """Run the plan and put what it gives into `outcome`; `on_line` is told of each workload. Closes the target."""
    foreign, began = foreign_seconds(), time.perf_counter()

    def note(run: Run) -> None:
        nonlocal foreign, began
        figures = measure(run)
        now, at = foreign_seconds(), time.perf_counter()
        figures["foreign_cpu_percent"] = round(100 * (now - foreign) / (at - began), 1)
        foreign, began = now, at
        outcome.figures[run.workload.name] = figures
        outcome.errors.extend({trace.error for trace in run.traces if trace.error} - set(outcome.errors))
        on_line(_line(run.workload.name, figures))

    async def run() -> None:
        await run_all(target, plan.warm_up(), plan.workloads(), note)
        await target.close()

    asyncio.run(run())


@contextlib.contextmanager
def come_first() -> Iterator[None]:
    """Let this process, a client, be served before the servers, where that is allowed."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, CLIENT_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _line(name: str, figures: Figures) -> str:
    told = [f"{key} {figures[key]:g}" for key in BRIEF if figures.get(key) is not None]
    return f"{name}: {', '.join(told)}"
