"""What came to each of a model's tiers and what waits there, by when it became ready. Nothing here changes a row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from db.rates import SINCE, WINDOW_SECONDS
from db.settings import TIERS

STRETCH_SECONDS = 5
NUM_STRETCHES = WINDOW_SECONDS // STRETCH_SECONDS
ENOUGH_ARRIVALS = 30  # for a rate; fewer in a short time tell little


@dataclass
class Flow:
    """One tier's jobs in stretches of 5 s, the last 5 s first."""

    # Jobs that became ready then: [NUM_STRETCHES].
    arrived: list[int] = field(default_factory=lambda: [0] * NUM_STRETCHES)
    # Those that wait, parked ones aside: [NUM_STRETCHES + 1], the last are older.
    waiting: list[int] = field(default_factory=lambda: [0] * (NUM_STRETCHES + 1))
    oldest_wait: float | None = None  # seconds; None when nothing waits

    def num_older(self, seconds: float) -> float:
        """How many have waited longer than that, about: within a stretch they are taken to be spread evenly."""
        if seconds < WINDOW_SECONDS:
            stretch, part = divmod(max(0.0, seconds) / STRETCH_SECONDS, 1.0)
            return sum(self.waiting[int(stretch) + 1 :]) + self.waiting[int(stretch)] * (1.0 - part)
        if self.oldest_wait is None or seconds >= self.oldest_wait:
            return 0.0
        return self.waiting[-1] * (self.oldest_wait - seconds) / (self.oldest_wait - WINDOW_SECONDS)


WAIT = "greatest(0, date_part('epoch', statement_timestamp() - ready_at))"
# The first part walks an index of what waits, the second one of what started.
FLOWS = text(f"""
    SELECT tier, least({NUM_STRETCHES}, floor({WAIT} / {STRETCH_SECONDS}))::int AS stretch,
           count(*) AS num_waiting, count(*) FILTER (WHERE started_at IS NULL) AS num_arrived,
           date_part('epoch', statement_timestamp() - min(ready_at)) AS longest_wait
    FROM jobs WHERE model = :model AND tier IN (0, 1, 2) AND status = 'queued' AND ready_at IS NOT NULL
    GROUP BY 1, 2
    UNION ALL
    SELECT tier, floor({WAIT} / {STRETCH_SECONDS})::int, 0, count(*), NULL
    FROM jobs WHERE model = :model AND started_at > {SINCE} AND ready_at > {SINCE}
    GROUP BY 1, 2
""")


async def of_tiers(session: AsyncSession, model: str) -> list[Flow]:
    """The flow of each tier, the best first, by the Postgres clock."""
    flows = [Flow() for _ in TIERS]
    for row in await session.execute(FLOWS, {"model": model}):
        flow = flows[row.tier]
        flow.waiting[row.stretch] += row.num_waiting
        if row.stretch < NUM_STRETCHES:
            flow.arrived[row.stretch] += row.num_arrived
        if row.longest_wait is not None:
            flow.oldest_wait = max(flow.oldest_wait or 0.0, row.longest_wait)
    return flows


def arrival_rate(flows: Sequence[Flow]) -> float:
    """How many jobs per second come to these tiers together, as far as the last ones tell.

    The median of three spans of time, each as long as it takes to see enough: so a burst that is over does not count,
    and what has begun is soon believed.
    """
    arrived = [sum(flow.arrived[stretch] for flow in flows) for stretch in range(NUM_STRETCHES)]
    longest = NUM_STRETCHES // 3
    num = next((num for num in range(1, longest) if sum(arrived[: 3 * num]) >= ENOUGH_ARRIVALS), longest)
    num_arrived = median(sum(arrived[first : first + num]) for first in (0, num, 2 * num))
    return num_arrived / (num * STRETCH_SECONDS)
