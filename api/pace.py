"""How fast a model's jobs start, and what that means for one that waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, sqrt

from sqlalchemy.ext.asyncio import AsyncSession

from api.progress import Progress, StartIn
from api.schemas import Estimate
from db import flows, rates, workers
from db.flows import Flow
from db.job_queries import Depth
from db.order import LIFTED_EVERY, lifted_after
from db.rates import Rate
from db.settings import TIERS, Settings

SEAT_SECONDS = 1.0  # a free seat is filled within
MOST_SECONDS = 10 * 365 * 86400.0  # what is later may be never
CHANGE = 0.2  # of the rate of starts: how far the arrivals of better tiers, or the place by age, may be off


@dataclass(frozen=True)
class TierPace:
    """What a tier adds to the waiting of others."""

    flow: Flow
    overtaking: float  # jobs of better tiers that come per second
    lifted_after: float  # seconds of waiting, see `db.order`

    @property
    def lifted_in(self) -> float:
        """Seconds until aging lifts the oldest of its waiting jobs."""
        return inf if self.flow.oldest_wait is None else max(0.0, self.lifted_after - self.flow.oldest_wait)


@dataclass(frozen=True)
class Pace:
    """One model's, as last measured."""

    rate: Rate | None  # of starts; None: nothing has started lately
    num_running: int
    num_seats: int  # of workers that are ready
    tiers: Sequence[TierPace]  # the best first

    def start_in(self, position: int, *, tier: int, waited_seconds: float | None) -> StartIn | None:
        """When the job at `position` (1 is next) starts; None when nothing tells. A parked job has not `waited`.

        There are two ways, and the sooner one counts. By tier: `position` jobs start, and those of better tiers that
        come meanwhile go first. By age: once the job is lifted, every fourth start is that of an older one, or its own.
        Starts come at the rate of the seconds of the last two minutes in which jobs waited, with its variance.
        """
        if position <= self.num_seats - self.num_running:
            return StartIn(0.0, 0.0, SEAT_SECONDS)
        if self.rate is None:
            return None
        start = self._by_tier(self.rate, position, tier, waited_seconds)
        if tier > 0 and self.tiers[tier].lifted_after < inf:
            start = start.or_by(self._by_age(self.rate, position, tier, waited_seconds))
        return StartIn(*(min(MOST_SECONDS, seconds) for seconds in (start.earliest, start.likely, start.latest)))

    def _by_tier(self, rate: Rate, position: int, tier: int, waited: float | None) -> StartIn:
        overtaking = self.tiers[tier].overtaking
        left = max(0.0, rate.per_second - overtaking)
        change = CHANGE * rate.per_second if tier > 0 else 0.0
        if overtaking > rate.per_second:  # which cannot go on for long, and may end at any time
            change += min(overtaking - rate.per_second, rate.per_second / 2)
        doubt = sqrt(_variance(rate) / _seconds(rate) + change**2)
        progress = Progress(left, _variance(rate) + overtaking, doubt)
        return progress.reaches(self._ahead(position, tier, waited, left) + 0.5)

    def _ahead(self, position: int, tier: int, waited: float | None, left: float) -> float:
        """Jobs that go before this one, of those that wait now: also those that are lifted while it waits."""
        worse = [(other, other.flow.num_older(waited or 0.0)) for other in self.tiers[tier + 1 :]]
        num_worse = sum(older for _, older in worse)
        num_lifted = sum(min(older, other.flow.num_older(other.lifted_after)) for other, older in worse)
        ahead = float(position - 1)
        if waited is None:  # it stands behind all that are ready, and will pass those of worse tiers
            ahead = by_tier = max(0.0, ahead - num_worse)
        else:  # `position` has those in it that are lifted
            by_tier = max(ahead - num_lifted, ahead * (1 - 1 / LIFTED_EVERY))
        lifted_in = min((other.lifted_in for other, older in worse if older >= 1), default=inf)
        num_later = max(0.0, by_tier - left * lifted_in) if lifted_in < inf else 0.0
        return max(ahead, by_tier + min(num_later / (LIFTED_EVERY - 1), num_worse))

    def _by_age(self, rate: Rate, position: int, tier: int, waited: float | None) -> StartIn:
        doubt = sqrt(_variance(rate) / _seconds(rate) + (CHANGE * rate.per_second) ** 2)
        progress = Progress(rate.per_second, _variance(rate), doubt)
        lifted_in = max(0.0, self.tiers[tier].lifted_after - (waited or 0.0))
        own_turn = progress.reaches(LIFTED_EVERY - 0.5)
        first = StartIn(lifted_in, lifted_in, lifted_in + own_turn.latest)
        begins_in = min(lifted_in, *(other.lifted_in for other in self.tiers[1:]))
        turns = self._turns_by_age(position, tier, waited)
        return progress.reaches(LIFTED_EVERY * turns - 0.5).after(begins_in, not_before=first)

    def _turns_by_age(self, position: int, tier: int, waited: float | None) -> float:
        """Turns by age up to this job's, when others take three in between: older ones of better tiers among them."""
        older = [other.flow.num_older(waited or 0.0) for other in self.tiers]
        better, same, worse = sum(older[:tier]), older[tier], sum(older[tier + 1 :])
        not_better = position - 1 - sum(sum(other.flow.waiting) for other in self.tiers[:tier])
        older_ones = max(same + worse, not_better + (0.0 if waited is None else worse))  # the parked stand behind them
        return 1 + max(older_ones, (older_ones + better) / LIFTED_EVERY)


def _variance(rate: Rate) -> float:
    return rate.per_second * rate.dispersion


def _seconds(rate: Rate) -> float:
    return rate.num_starts / rate.per_second


async def measure(session: AsyncSession, model: str, depths: Sequence[Depth], settings: Settings) -> Pace:
    """The pace of `model` now; `depths` are those of its tiers."""
    seconds = await rates.started(session, model)
    tiers = await flows.of_tiers(session, model)
    live = await workers.live(session, settings.lease_seconds)
    num_seats = sum(worker.max_num_seqs for worker in live if worker.model == model and worker.status == "ready")
    oldest_wait = max((flow.oldest_wait for flow in tiers if flow.oldest_wait is not None), default=None)
    has_tiers = settings.queue_policy != "fcfs"
    return Pace(
        rate=rates.start_rate(seconds, oldest_wait=oldest_wait, num_seats=num_seats),
        num_running=sum(depth.running for depth in depths),
        num_seats=num_seats,
        tiers=[
            TierPace(tiers[tier], flows.arrival_rate(tiers[:tier]) if has_tiers else 0.0, lifted_after(tier, settings))
            for tier in range(len(TIERS))
        ],
    )


def estimate(
    pace: Pace, position: int, *, tier: int, waited_seconds: float | None, now: datetime | None = None
) -> Estimate | None:
    """What a client is told about the start of its job; `waited_seconds` since it became ready, None when parked."""
    start = pace.start_in(position, tier=tier, waited_seconds=waited_seconds)
    if start is None:
        return None
    now = now or datetime.now(UTC)
    return Estimate(
        start_in_seconds=round(start.likely, 1),
        start_at=now + timedelta(seconds=start.likely),
        earliest=now + timedelta(seconds=start.earliest),
        latest=now + timedelta(seconds=start.latest),
    )
