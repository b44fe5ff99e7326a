"""How fast jobs start: of a model, for estimates; of a tier or a key, for Retry-After. Nothing here changes a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from db.job_queries import JOB_TOKENS
from db.models import Job, Worker

WINDOW_SECONDS = 120
DRAIN_SECONDS = 60
MIN_BUSY_SECONDS = 5  # fewer may be the seats filling up, which is quicker than they turn over
MIN_SPANS = 4  # to tell from
SPANS = (1, 5, 15)  # seconds; a rate that wanders shows over longer ones
MIN_DISPERSION = 1.0  # Poisson's: a few even starts do not promise that the next ones are as even


@dataclass(frozen=True)
class Second:
    """What started within one second of the window."""

    seconds_ago: int  # 0: in the last second
    num_started: int
    waiting_since: float | None  # seconds ago: when the first of those that waited over a second became ready
    num_ended: int  # of those that started
    run_seconds: float  # that all of them took together, so far: those that ended first are the short ones


@dataclass(frozen=True)
class Rate:
    """Starts per second and how unevenly they come: variance over mean of their number in some time, 1 at the least."""

    per_second: float
    dispersion: float
    num_starts: int  # that it was told from


@dataclass(frozen=True)
class Drain:
    """What starting jobs take out of a queue. A job's tokens are those of its prompt and its `max_tokens`."""

    jobs_per_second: float
    tokens_per_second: float


# A stable function of the time, and no parameter: the one plan that is kept knows how few rows that leaves.
SINCE = f"statement_timestamp() - interval '{WINDOW_SECONDS} seconds'"
STARTED = text(f"""
    SELECT
        greatest(0, floor(extract(epoch FROM statement_timestamp() - started_at)))::int AS seconds_ago,
        count(*) AS num_started,
        extract(
            epoch FROM statement_timestamp() - min(ready_at) FILTER (WHERE started_at - ready_at > interval '1 second')
        )::float8 AS waiting_since,
        count(ended_at) AS num_ended,
        extract(epoch FROM sum(coalesce(ended_at, statement_timestamp()) - started_at))::float8 AS run_seconds
    FROM jobs
    WHERE model = :model AND started_at > {SINCE}
    GROUP BY 1 ORDER BY 1
""")


async def started(session: AsyncSession, model: str) -> list[Second]:
    """The seconds of the last `WINDOW_SECONDS` in which jobs of the model started, by the Postgres clock."""
    return [Second(*row) for row in await session.execute(STARTED, {"model": model})]


def start_rate(seconds: Sequence[Second], *, oldest_wait: float | None, num_seats: int) -> Rate | None:
    """How fast the model's jobs start while there are some to start; None when nothing tells.

    Told from the seconds in which jobs waited (`oldest_wait`: for how many seconds the oldest does now), as an idle
    service starts no more than it is given. Without enough of them: the seats over the time that a job took. Without
    that: all starts since the first.
    """
    counts = _counts(seconds)
    busy = [counts[age] for age in _busy_ages(seconds, oldest_wait)]
    if len(busy) >= MIN_BUSY_SECONDS and any(busy):
        return _rate(busy)
    num_ended = sum(second.num_ended for second in seconds)
    run_seconds = sum(second.run_seconds for second in seconds)
    if num_ended and run_seconds > 0 and num_seats:
        return Rate(num_seats * num_ended / run_seconds, MIN_DISPERSION, num_ended)
    first = max((second.seconds_ago for second in seconds), default=None)
    return None if first is None else _rate(counts[: first + 1])


def _counts(seconds: Sequence[Second]) -> list[int]:
    """Starts in each second of the window, the last one first."""
    counts = [0] * (WINDOW_SECONDS + 1)
    for second in seconds:
        counts[min(second.seconds_ago, WINDOW_SECONDS)] += second.num_started
    return counts


def _busy_ages(seconds: Sequence[Second], oldest_wait: float | None) -> list[int]:
    """The seconds, told by how long ago they were, in which some job waited: one that started in or after them did."""
    waiting_since = {second.seconds_ago: second.waiting_since or 0.0 for second in seconds}
    reach, ages = oldest_wait or 0.0, []
    for age in range(WINDOW_SECONDS):
        reach = max(reach, waiting_since.get(age, 0.0))
        if reach >= age + 1:
            ages.append(age)
    return ages


def _rate(counts: Sequence[int]) -> Rate:
    return Rate(fmean(counts), max(MIN_DISPERSION, *(_dispersion(counts, span) for span in SPANS)), sum(counts))


def _dispersion(counts: Sequence[int], span: int) -> float:
    """Variance over mean of the number in so many seconds; 0 where there are too few of these to tell."""
    sums = [sum(counts[first : first + span]) for first in range(0, len(counts) - span + 1, span)]
    mean = fmean(sums) if len(sums) >= MIN_SPANS or span == 1 else 0.0
    return pvariance(sums, mean) / mean if mean else 0.0


async def queue_drain(session: AsyncSession, model: str, tier: int) -> Drain:
    """How fast the model's tier drains, over the last minute or since the first start within it."""
    return await _drain(session, Job.model == model, Job.tier == tier)


async def key_drain(session: AsyncSession, key_id: UUID) -> Drain:
    """How fast the key's own jobs leave their queues, in all models and tiers, lines of batches aside."""
    is_own = (Job.key_id == key_id, Job.batch_id.is_(None))
    return await _drain(session, Job.model.in_(select(Worker.model)), *is_own)


async def _drain(session: AsyncSession, *which: ColumnElement[bool]) -> Drain:
    now = func.statement_timestamp()
    num_tokens = func.coalesce(func.sum(JOB_TOKENS), 0)
    is_late = Job.started_at > text(f"statement_timestamp() - interval '{DRAIN_SECONDS} seconds'")
    age = func.extract("epoch", now - func.min(Job.started_at))  # of the first start
    row = (await session.execute(select(func.count(), num_tokens, age).where(*which, is_late))).one()
    seconds = max(1.0, float(row[2] or 0.0))
    return Drain(row[0] / seconds, float(row[1]) / seconds)
