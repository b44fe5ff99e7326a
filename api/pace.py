"""How fast a model's jobs start, and what that means for one that waits."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import exp, sqrt

from sqlalchemy.ext.asyncio import AsyncSession

from api.schemas import Estimate
from db import rates, workers
from db.job_queries import Depth
from db.order import LIFTED_EVERY
from db.rates import WINDOW_SECONDS, Rate
from db.settings import Settings

Z = 1.645  # of the normal distribution: nine in ten starts are to fall between earliest and latest
SEAT_SECONDS = 1.0  # a free seat is filled within
MOST_SECONDS = 10 * 365 * 86400.0  # what is later may be never


@dataclass(frozen=True)
class StartIn:
    """Seconds until a waiting job starts: at the earliest, probably, at the latest."""

    earliest: float
    likely: float
    latest: float


@dataclass(frozen=True)
class Pace:
    """One model's, as last measured."""

    rate: Rate | None  # of starts; None: nothing has started lately
    num_running: int
    num_seats: int  # of workers that are ready
    arrivals_per_second: tuple[float, ...] = ()  # of each tier, the best first

    def start_in(self, position: int, *, tier: int = 0, overtaken_seconds: float = 0.0) -> StartIn | None:
        """When the job at `position` (1 is next) starts; None when nothing tells.

        It does when `position` jobs have started. Starts come at `per_second` with the dispersion D, the variance over
        the mean of their number per second. So the logarithm of the time that p of them take has a variance of about
        D / (p - 1/2), and that of the rate, told from n of them, D / n: nine in ten starts are within a factor of
        exp(1.645 * sqrt(D / (p - 1/2) + D / n)), up or down.
        Jobs of better tiers that arrive meanwhile go first, for `overtaken_seconds`: they are expected to come as in
        the last two minutes, and, for the earliest start, not to come.
        """
        if position <= self.num_seats - self.num_running:
            return StartIn(0.0, 0.0, SEAT_SECONDS)
        if self.rate is None:
            return None
        rate, overtaking = self.rate.per_second, sum(self.arrivals_per_second[:tier])
        spread = exp(Z * sqrt(self.rate.dispersion * (1 / (position - 0.5) + 1 / self.rate.num_starts)))
        return StartIn(
            earliest=_seconds(position, rate * spread, 0.0, overtaken_seconds),
            likely=_seconds(position, rate, overtaking, overtaken_seconds),
            latest=_seconds(position, rate / spread, overtaking, overtaken_seconds),
        )


def _seconds(position: int, rate: float, overtaking: float, overtaken_seconds: float) -> float:
    """Until `position` jobs have started at `rate`, `overtaking` others per second going first for a while.

    After that the job has at least every fourth turn.
    """
    left = max(0.0, rate - overtaking)
    if position <= left * overtaken_seconds:
        return min(MOST_SECONDS, position / left)
    if overtaken_seconds >= MOST_SECONDS:
        return MOST_SECONDS
    lifted = max(left, rate / LIFTED_EVERY)
    return min(MOST_SECONDS, overtaken_seconds + (position - left * overtaken_seconds) / lifted)


async def measure(session: AsyncSession, model: str, depths: Sequence[Depth], settings: Settings) -> Pace:
    """The pace of `model` now; `depths` are those of its tiers."""
    started = await rates.started(session, model)
    live = await workers.live(session, settings.lease_seconds)
    num_seats = sum(worker.max_num_seqs for worker in live if worker.model == model and worker.status == "ready")
    oldest = min((depth.oldest_ready_at for depth in depths if depth.oldest_ready_at is not None), default=None)
    oldest_wait = None if oldest is None else time.time() - oldest
    return Pace(
        rate=rates.start_rate(started, oldest_wait=oldest_wait, num_seats=num_seats),
        num_running=sum(depth.running for depth in depths),
        num_seats=num_seats,
        arrivals_per_second=tuple(num_jobs / WINDOW_SECONDS for num_jobs in started.num_arrived),
    )


def estimate(
    pace: Pace, position: int, *, tier: int = 0, overtaken_seconds: float = 0.0, now: datetime | None = None
) -> Estimate | None:
    """What a client is told about the start of its job; `overtaken_seconds` as `db.order` has it."""
    start = pace.start_in(position, tier=tier, overtaken_seconds=overtaken_seconds)
    if start is None:
        return None
    now = now or datetime.now(UTC)
    return Estimate(
        start_in_seconds=round(start.likely, 1),
        start_at=now + timedelta(seconds=start.likely),
        earliest=now + timedelta(seconds=start.earliest),
        latest=now + timedelta(seconds=start.latest),
    )
