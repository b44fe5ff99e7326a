"""Submits a workload's jobs to whatever runs them, and watches."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job, Mode, Workload

LOOK_SECONDS = 0.005


class Target(Protocol):
    """What is measured."""

    async def run(self, job: Job, trace: Trace) -> None:
        """Run the job to its end and note in `trace` when it began and when tokens came."""

    async def close(self) -> None:
        """Let it go."""


@dataclass(frozen=True)
class Run:
    """A workload that has been run."""

    workload: Workload
    traces: list[Trace]
    seconds: float
    long_at: float | None = None  # when the long prompt was submitted


async def run_workload(target: Target, workload: Workload) -> Run:
    """Run all its jobs; a job that fails is in its trace, and the others go on."""
    began = time.perf_counter()
    traces = [Trace(job) for job in workload.jobs]
    long_at = None
    if workload.mode is Mode.ONE_BY_ONE:
        for trace in traces:
            await _run(target, trace)
    elif workload.mode is Mode.BESIDE:
        long_at = await _run_beside(target, traces, workload.num_before)
    else:
        await asyncio.gather(*(_run_at(target, trace, began + trace.job.at) for trace in traces))
    return Run(workload, traces, time.perf_counter() - began, long_at)


async def run_all(
    target: Target, warm_up: list[Workload], measured: list[Workload], on_run: Callable[[Run], None]
) -> None:
    """Warm up, then run what is measured; `on_run` is told of each."""
    for workload in warm_up:
        await run_workload(target, workload)
    for workload in measured:
        on_run(await run_workload(target, workload))


async def _run_at(target: Target, trace: Trace, at: float) -> None:
    if trace.job.at:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
    await _run(target, trace)


async def _run_beside(target: Target, traces: list[Trace], num_before: int) -> float:
    """Submit the long prompt once each of the others has `num_before` tokens, or has failed."""
    streams = [trace for trace in traces if not trace.job.is_long]
    tasks = [asyncio.create_task(_run(target, trace)) for trace in streams]
    while any(len(trace.stamps) < num_before and trace.error is None for trace in streams):
        await asyncio.sleep(LOOK_SECONDS)
    long_at = time.perf_counter()
    await asyncio.gather(*tasks, *(_run(target, trace) for trace in traces if trace.job.is_long))
    return long_at


async def _run(target: Target, trace: Trace) -> None:
    try:
        await target.run(trace.job, trace)
    except Exception as error:  # it stands in the table
        trace.error = f"{type(error).__name__}: {error}"[:300]
