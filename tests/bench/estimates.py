"""The estimate benchmark: `python -m tests.bench.estimates`. Writes the table to results/estimates.md.

Jobs of all tiers and many lengths go through one API process and one engine worker; their clients poll, and what they
were told of position and start is compared with what came. About two and a half minutes.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from uuid import UUID

from sqlalchemy import text

from db.settings import TIERS
from tests.bench import machine, polls
from tests.bench.judged import HEADER, LONG_WAIT, Judged, judge, row
from tests.bench.polls import Arrival, Phase
from tests.bench.stack import Stack, run_stack

RESULTS = Path(__file__).parent / "results" / "estimates.md"
SEED = 1
NUM_SEATS = 16
NUM_KEYS = 6
AGING_SECONDS = 8.0
NUM_TOKENS = [6, 9, 12, 15, 18, 24, 30, 36, 48, 60]  # at 30 a second: 0.2 to 2 s, 0.86 s on average
PHASES = [  # 16 seats start about 18 of these jobs a second
    Phase("burst on a cold service", 30.0, at_once=(60, 200, 180), per_second=(2.0, 2.0, 2.0)),
    Phase("steady, near capacity", 45.0, per_second=(4.0, 7.0, 5.0)),
    Phase("flood of high", 20.0, per_second=(24.0, 2.0, 2.0)),
    Phase("after the flood", 15.0, per_second=(3.0, 3.0, 3.0)),
]
WAITS = [("up to 5 s", 0.0, LONG_WAIT), ("5 to 15 s", LONG_WAIT, 15.0), ("over 15 s", 15.0, 1e9)]

STARTED = text("SELECT id, extract(epoch FROM started_at)::float8 AS started_at FROM jobs WHERE created_at >= :since")


def main() -> None:
    """Run all phases, write the table and print it."""
    load_before, began = machine.load_average(), time.monotonic()
    random = Random(SEED)
    jobs = polls.arrivals(PHASES, random, num_keys=NUM_KEYS, num_tokens=NUM_TOKENS)
    with run_stack(max_num_seqs=NUM_SEATS, aging_threshold_seconds=AGING_SECONDS) as stack:
        since = stack.now()
        with stack.worker(app="tests.bench.paced_app"):
            told = asyncio.run(polls.run(stack, jobs, random))
            stack.wait_done(since)
        judged = judge(told, _started_at(stack, since))
    loads = f"{load_before:.1f} before and {machine.load_average():.1f} after"
    run = f"the run took {time.monotonic() - began:.0f} s, load average {loads}"
    RESULTS.write_text("\n".join([*(f"- {line}" for line in [*_heading(jobs), run]), "", *_table(judged), ""]))
    print(RESULTS.read_text())


def _started_at(stack: Stack, since: datetime) -> dict[UUID, float]:
    with stack.engine.connect() as connection:
        rows = connection.execute(STARTED, {"since": since})
        return {row.id: row.started_at for row in rows}


def _heading(jobs: Sequence[Arrival]) -> list[str]:
    return [
        *machine.describe(),
        "command: `python -m tests.bench.estimates`",
        f"{len(jobs):,} jobs of {len(TIERS)} tiers and {NUM_KEYS} keys, half of them of one key, on {NUM_SEATS} seats",
        f"{min(NUM_TOKENS)} to {max(NUM_TOKENS)} tokens each, at 30 a second; aging begins after {AGING_SECONDS:.0f} s",
        f"each client asks every {polls.POLL_SECONDS:.0f} s on average, at random, while its job waits",
    ]


def _table(judged: Sequence[Judged]) -> list[str]:
    groups = [(tier, [each for each in judged if each.poll.tier == level]) for level, tier in enumerate(TIERS)]
    groups.append(("all", list(judged)))
    groups.append(("of these, the submit's own", [each for each in judged if each.poll.is_submit]))
    groups.append(("of these, of parked jobs", [each for each in judged if each.poll.is_parked]))
    groups += [(phase.name, [each for each in judged if each.poll.phase == phase.name]) for phase in PHASES]
    groups += [(f"{name} to wait", [each for each in judged if low < each.wait <= high]) for name, low, high in WAITS]
    return [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|", *(row(name, each) for name, each in groups)]


if __name__ == "__main__":
    main()
