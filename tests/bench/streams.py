"""The stream benchmark: `python -m tests.bench.streams`. Prints each figure and writes the table to results/streams.md.

50 jobs stream to 50 clients at the pace of a larger model, in turns without and beside 1,000 clients whose jobs wait.
"""

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from sqlalchemy import text

from tests.bench import append_log, load, machine
from tests.bench.event_client import EventClient, OnEvent
from tests.bench.null_model import SHAPE
from tests.bench.report import Report
from tests.bench.stack import Stack, run_stack
from tests.bench.stream_rounds import Arrivals, Round, add_figures
from tests.checkpoints import make_checkpoint

RESULTS = Path(__file__).parent / "results" / "streams.md"
NUM_ACTIVE = 50
NUM_IDLE = 1000
NUM_TOKENS = 6000  # of an active job: more than it makes in the whole run
IS_BESIDE_IDLE = [False, True, True, False] * 3  # in this order, so that a drift weighs on both alike
ROUND_SECONDS = 4.0
REST_SECONDS = 1.0  # after clients came or went
NUM_CONNECTING = 16

BY_STATUS = text("SELECT id FROM jobs WHERE status = :status ORDER BY id")


def main() -> None:
    """Run the rounds one after the other, on one stack."""
    began, load_before = time.monotonic(), machine.load_average()
    report = Report([*machine.describe(), "command: `python -m tests.bench.streams`"])
    with run_stack(
        max_num_seqs=NUM_ACTIVE,
        kv_cache_tokens=NUM_ACTIVE * (NUM_TOKENS + 64),
        aging_threshold_seconds=3600.0,  # jobs that wait stay where they are
        drain_seconds=0.0,
    ) as stack:
        model = make_checkpoint(stack.settings.data_dir / "long", **SHAPE | {"max_position_embeddings": 2 * NUM_TOKENS})
        stack.settings = stack.settings.model_copy(update={"model": str(model)})
        with stack.worker(app="tests.bench.paced_app"):
            arrivals, rounds = asyncio.run(measure(stack))
        appended_at = append_log.read(stack.settings.data_dir / append_log.NAME)
    add_figures(report, rounds, [arrivals.latencies(appended_at, each.began_at, each.ended_at) for each in rounds])
    seconds, loads = time.monotonic() - began, f"{load_before:.1f} before and {machine.load_average():.1f} after"
    report.heading.append(f"load average {loads}, on {os.cpu_count()} cores; the whole run took {seconds:.0f} s")
    report.write(RESULTS)
    print("\n" + report.markdown())


async def measure(stack: Stack) -> tuple[Arrivals, list[Round]]:
    """What reached the active clients when, and the rounds."""
    arrivals, rounds, idle = Arrivals(), list[Round](), list[EventClient]()
    await load.submit_all(stack, num_connections=4, num_jobs=NUM_ACTIVE, max_tokens=NUM_TOKENS)
    active_ids = await ids_of(stack, "running", NUM_ACTIVE)
    await load.submit_all(stack, num_connections=4, num_jobs=NUM_IDLE)
    idle_ids = await ids_of(stack, "queued", NUM_IDLE)
    active = await connect_all(stack, active_ids, arrivals.add)
    gc.collect()
    gc.disable()  # a collection in this process would be measured
    for is_beside_idle in IS_BESIDE_IDLE:
        if is_beside_idle and not idle:
            idle = await connect_all(stack, idle_ids, lambda job_id, number, at: None)
        elif not is_beside_idle:
            close_all(idle)
        rounds.append(await one_round(stack, len(idle)))
    close_all(idle)
    close_all(active)
    return arrivals, rounds


async def ids_of(stack: Stack, status: str, num_jobs: int) -> Sequence[UUID]:
    """The jobs with that status, once there are so many."""
    while True:
        with stack.engine.begin() as connection:
            ids = connection.scalars(BY_STATUS, {"status": status}).all()
        if len(ids) == num_jobs:
            return ids
        await asyncio.sleep(0.1)


async def connect_all(stack: Stack, job_ids: Sequence[UUID], on_event: OnEvent) -> list[EventClient]:
    """A client for each job, a few at a time; each has its first event."""
    gate = asyncio.Semaphore(NUM_CONNECTING)

    async def connect(job_id: UUID) -> EventClient:
        async with gate:
            return await EventClient.connect(stack.settings.port, job_id, stack.keys[0], on_event)

    return await asyncio.gather(*(connect(job_id) for job_id in job_ids))


def close_all(clients: list[EventClient]) -> None:
    for client in clients:
        client.close()
    clients.clear()


async def one_round(stack: Stack, num_idle: int) -> Round:
    """Measure for a while, once the subscriptions are those of the clients that are there."""
    while len(stack.redis.pubsub_channels("stream:*")) != NUM_ACTIVE + num_idle + 1:  # the hub has one of its own
        await asyncio.sleep(0.1)
    await asyncio.sleep(REST_SECONDS)
    counts, used, began = stack.counts(), stack.processor_seconds(), time.monotonic()
    await asyncio.sleep(ROUND_SECONDS)
    ended, after = time.monotonic(), stack.processor_seconds()
    spent = {name: after[name] - used[name] for name in after}
    return Round(num_idle, began, ended, spent, stack.counts().since(counts))


if __name__ == "__main__":
    main()
