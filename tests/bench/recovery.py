"""How long a lost worker's jobs stand still until another runs them: `python -m tests.bench.recovery`.

A lease of 3 s and a sweep every second, two workers of a tiny model; the figures are of all jobs that the lost one had.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from db import migrate
from tests.bench import machine
from tests.bench.report import Report, percentile
from tests.servers import run_servers
from tests.workers.recovery_world import LEASE_SECONDS, SWEEP_SECONDS, World, recovering
from tests.workers.worker_process import LONG, WorkerProcess, wait_until

RESULTS = Path(__file__).parent / "results" / "recovery.md"
NUM_ROUNDS, NUM_JOBS = 12, 8
KV_TOKENS = 32_768  # room for all jobs in either worker: else some wait for blocks, not for a worker


def main() -> None:
    report = Report([*machine.describe(), "command: `.venv/bin/python -m tests.bench.recovery`"])
    with run_servers() as servers, tempfile.TemporaryDirectory(prefix="hr-recovery-") as name:
        migrate.upgrade(servers.settings)
        sizes = {"max_num_seqs": NUM_JOBS, "kv_cache_tokens": KV_TOKENS}
        with recovering(servers, Path(name), drain_seconds=0.0, **sizes) as world:
            other = start(world)
            ends: dict[str, Callable[[WorkerProcess], object]] = {
                "killed": WorkerProcess.kill,
                "drained": WorkerProcess.terminate,
            }
            for what, end in ends.items():
                seconds = []
                for _ in range(NUM_ROUNDS):
                    lost = start(world)
                    seconds += lose(world, lost, other, end)
                how = f"{len(seconds)} jobs in {NUM_ROUNDS} rounds; from the signal to the next attempt in the row"
                value = f"median {percentile(seconds, 50):.2f} s, most {max(seconds):.2f} s"
                report.add(f"jobs of a {what} worker run again", value, how)
    bound = LEASE_SECONDS + SWEEP_SECONDS
    report.heading.append(f"the bound for a killed one: a lease of {LEASE_SECONDS:g} s and a sweep, {bound:g} s in all")
    report.write(RESULTS)
    print("\n" + report.markdown())


def start(world: World) -> WorkerProcess:
    worker = world.start(f"worker-{len(world.started)}")
    world.wait_ready(worker)
    return worker


def lose(
    world: World, lost: WorkerProcess, other: WorkerProcess, end: Callable[[WorkerProcess], object]
) -> list[float]:
    """Let both workers run jobs, end one, and time its jobs until the other has each."""
    job_ids = world.submit(NUM_JOBS, LONG)
    world.jobs.wait_streamed(job_ids, 2)
    lost_id = world.wait_ready(lost)
    moved = {row.id for row in world.jobs.rows(job_ids) if row.worker_id == lost_id and row.status == "running"}
    began = time.monotonic()
    end(lost)
    seconds: dict[UUID, float] = {}
    while len(seconds) < len(moved):
        for row in world.jobs.rows(list(moved - seconds.keys())):
            if row.attempt > 1 and row.status != "queued":
                seconds[row.id] = time.monotonic() - began
        time.sleep(0.02)
    world.jobs.wait_ended(job_ids)
    wait_until(lambda: world.ready_ids(other), "the other worker to be ready")
    return list(seconds.values())


if __name__ == "__main__":
    main()
