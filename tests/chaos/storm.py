"""`python -m tests.chaos.storm --minutes 10 --seed 1`: everything killed, nothing lost. Ends with one line of figures.

Peace first, for the texts as they should be; then the storm; then quiet, until nothing is under way; then the audit.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.chaos.auditor import Auditor, Verdict
from tests.chaos.batches import BatchClient, check_batch
from tests.chaos.clients import Client, Transcript
from tests.chaos.faults import Faults, schedule
from tests.chaos.hooks import Hooks, listening
from tests.chaos.process import num_fds
from tests.chaos.recipes import Recipe, make_recipes, taste
from tests.chaos.world import World, running_world, wait_until

NUM_CLIENTS = 12
NUM_BATCH_CLIENTS = 2
EVERY_SECONDS = 2.0  # between faults
QUIET_SECONDS = 120  # for the last jobs to end, and the last webhooks to arrive
UNDER_WAY = "SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')"
UNDELIVERED = "SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'"
# A killed sender's lease is minutes long. Nobody sends now, so its time may as well be over.
HURRY = "UPDATE webhook_deliveries SET due_at = clock_timestamp() WHERE status = 'pending' RETURNING 1"


@dataclass(frozen=True)
class Report:
    """How a storm went."""

    seed: int
    num_faults: int
    num_kills: int
    num_jobs: int
    num_batches: int
    verdict: Verdict

    @property
    def is_clean(self) -> bool:
        return not any(self.verdict.counts.values())

    def __str__(self) -> str:
        figures = {"faults": self.num_faults, "kills": self.num_kills, "jobs": self.num_jobs}
        figures |= {"batches": self.num_batches} | self.verdict.counts
        return f"seed {self.seed}: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in figures.items())


async def storm(*, seed: int, storm_seconds: float, num_clients: int = NUM_CLIENTS, logs: Path | None = None) -> Report:
    """Run one storm and audit it; the processes' logs are kept in the directory `logs`."""
    began = monotonic()
    async with running_world(logs=logs) as world:
        recipes = await taste(world.urls[0], make_recipes())
        print(f"seed {seed}: {storm_seconds:g} s of storm after {monotonic() - began:.0f} s of peace", flush=True)
        secret = (world.settings.data_dir / "webhook-secret").read_text().strip()
        with listening(secret) as hooks:
            auditor = await _auditor(world, len(recipes))
            faults = Faults(world, schedule(seed, storm_seconds=storm_seconds, every_seconds=EVERY_SECONDS))
            clients = _make_clients(world, recipes, hooks, seed, num_clients)
            batch_clients = _make_batch_clients(world, recipes, seed)
            await _blow(world, faults, [*clients, *batch_clients], storm_seconds)
            await _calm(world)
            print(f"nothing is under way after {monotonic() - began:.0f} s in all", flush=True)
            transcripts = [transcript for client in clients for transcript in client.transcripts]
            verdict = await asyncio.to_thread(auditor.audit, transcripts, hooks, faults.happened)
            batches = [transcript for client in batch_clients for transcript in client.transcripts]
            for batch in batches:
                check_batch(verdict, batch)
            verdict.refused += [refusal for client in (*clients, *batch_clients) for refusal in client.refusals]
            report = Report(seed, len(faults.happened), faults.num_kills, len(transcripts), len(batches), verdict)
            _tell(world, report, transcripts)
            return report


async def _auditor(world: World, num_recipes: int) -> Auditor:
    idle = await asyncio.to_thread(world.inspect)
    fds = {name: num_fds(process.pid) for name, process in world.processes.items()}
    return Auditor(world, num_recipes=num_recipes, idle=idle, fds=fds)


def _make_clients(world: World, recipes: list[Recipe], hooks: Hooks, seed: int, num_clients: int) -> list[Client]:
    names = [f"{seed}-client-{number}" for number in range(num_clients)]
    return [Client(name, world.urls, recipes, seed=name, hook_url=hooks.url) for name in names]


def _make_batch_clients(world: World, recipes: list[Recipe], seed: int) -> list[BatchClient]:
    names = [f"{seed}-batch-client-{number}" for number in range(NUM_BATCH_CLIENTS)]
    return [BatchClient(name, world.urls, recipes, seed=name) for name in names]


async def _blow(world: World, faults: Faults, clients: Sequence[Client | BatchClient], storm_seconds: float) -> None:
    """Faults and clients side by side, until the faults are over and the clients have seen their last jobs end."""
    stop, supervising = asyncio.Event(), asyncio.create_task(world.supervise())
    running = [asyncio.create_task(client.run(stop)) for client in clients]
    began = monotonic()
    await faults.run()
    await asyncio.sleep(max(0.0, began + storm_seconds - monotonic()))
    stop.set()
    print(f"{monotonic() - began:6.1f} s calm", flush=True)
    _, waiting = await asyncio.wait(running, timeout=QUIET_SECONDS)
    for task in waiting:  # the auditor will find its stream without an end
        task.cancel()
    await asyncio.gather(*running, return_exceptions=bool(waiting))
    await wait_until(world.is_ready, "everything to be back", QUIET_SECONDS)
    supervising.cancel()


async def _calm(world: World) -> None:
    """Wait until nothing is under way. What never ends is the auditor's to find."""
    await _until_none(world, UNDER_WAY)
    senders = [process for name, process in world.processes.items() if name.startswith("tasks")]
    if await asyncio.to_thread(world.ask, UNDELIVERED):
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in senders))
        await asyncio.to_thread(world.change, HURRY)
        for process in senders:
            process.start()
        await _until_none(world, UNDELIVERED)


async def _until_none(world: World, sql: str) -> None:
    async def is_none() -> bool:
        return await asyncio.to_thread(world.ask, sql) == 0

    try:
        await wait_until(is_none, sql, QUIET_SECONDS)
    except TimeoutError as error:
        print(error, flush=True)


def _tell(world: World, report: Report, transcripts: list[Transcript]) -> None:
    for sentence in report.verdict.sentences:
        print(sentence)
    deaths = {process.name: process.deaths for process in world.processes.values() if process.deaths}
    num_streamed = sum(transcript.is_streamed for transcript in transcripts)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(report.verdict.statuses.items()))
    print(f"jobs: {statuses}; {num_streamed} streamed")
    print(f"webhooks repeated by hit senders: {report.verdict.num_repeats}")
    print(f"streams left to expire by killed writers: {report.verdict.num_unclosed}")
    print(f"ended by themselves: {deaths or 'none'}")
    print(report, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything killed, nothing lost.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="directory for the processes' logs")
    arguments = parser.parse_args()
    report = asyncio.run(storm(seed=arguments.seed, storm_seconds=60 * arguments.minutes, logs=arguments.logs))
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
