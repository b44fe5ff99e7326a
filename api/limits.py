"""How much may wait, in jobs and in tokens: per model and tier, and per key. Beyond it, 429 with an honest Retry-After.

A key's share is counted twice: what it submits itself, and the lines of its batches. So neither takes of the other's
share. In the tier `low`, where lines run, both stand in the key's one line.

It is counted in Postgres. The counts are up to a second old, so a burst may overshoot a limit by what it sends in that
second. After a pause the first are let in by the older ones where those are far from the limit, and do not wait while
they are counted anew.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from api.errors import ApiError, retry_after
from api.services import Services
from db import job_queries, rates
from db.job_queries import Load
from db.jobs import NewJob
from db.rates import Drain
from db.settings import TIERS

ROOM_FRACTION = 0.01  # come back when this share of the queue has started, not when one seat is free
DEFAULT_RETRY_SECONDS = 10.0  # nothing has started lately, so nothing can be computed
MAX_RETRY_SECONDS = 120.0  # the OpenAI clients do not retry at all when told to wait longer
STALE_SECONDS = 60.0  # beyond the second
NOTHING = Load(0, 0)


@dataclass(frozen=True)
class Newcomer:
    """What the limits ask of a job that is to be queued. Its tokens are those of its prompt and its `max_tokens`.

    Those count once for each of its outputs.
    """

    model: str
    tier: int
    key_id: UUID
    num_tokens: int
    is_line: bool = False  # of a batch

    @classmethod
    def of(cls, new: NewJob) -> Self:
        """A submit's."""
        num_tokens = len(new.prompt_token_ids) + new.sampling.n * new.max_tokens
        return cls(new.model, new.tier, new.key_id, num_tokens, is_line=new.batch_id is not None)


@dataclass(frozen=True)
class Bound:
    """A queue, or one key's part of all queues: what waits there, and the most that may."""

    name: str
    load: Load
    most: Load
    settings: tuple[str, str]  # that set it, in jobs and in tokens
    drain: Callable[[], Awaitable[Drain]]  # how fast it empties

    def over(self, num_tokens: int) -> Load:
        """How much is too much when a job of `num_tokens` is added. Where nothing waits, any job may."""
        if self.load.num_jobs == 0:
            return NOTHING
        num_jobs_over = self.load.num_jobs + 1 - self.most.num_jobs
        num_tokens_over = self.load.num_tokens + num_tokens - self.most.num_tokens
        return Load(max(0, num_jobs_over), max(0, num_tokens_over))

    def is_near(self, num_tokens: int) -> bool:
        """Whether more than half of what may wait does: whoever is to be refused has to be counted exactly."""
        return (
            2 * self.load.num_jobs > self.most.num_jobs
            or 2 * (self.load.num_tokens + num_tokens) > self.most.num_tokens
        )


async def refusal(services: Services, new: Newcomer, *, beside: Load = NOTHING) -> ApiError | None:
    """The 429 when the queue of the job's model and tier, or the share of its key, is full; None when it is not.

    `beside` is what the same request adds to both.
    """
    bounds = await _bounds(services, new, beside, STALE_SECONDS)
    if any(bound.is_near(new.num_tokens) for bound in bounds):
        bounds = await _bounds(services, new, beside, 0.0)
    for bound in bounds:
        if bound.over(new.num_tokens) != NOTHING:
            return _queue_full(services, new, bound, await bound.drain())
    return None


async def _bounds(services: Services, new: Newcomer, beside: Load, stale_seconds: float) -> list[Bound]:
    return [
        await _queue_bound(services, new, beside, stale_seconds),
        await _key_bound(services, new, beside, stale_seconds),
    ]


async def _queue_bound(services: Services, new: Newcomer, beside: Load, stale_seconds: float) -> Bound:
    all_depths = await services.queue_depths(stale_seconds=stale_seconds)
    depths = [each for each in all_depths if (each.model, each.tier) == (new.model, new.tier)]
    num_jobs = sum(depth.ready + depth.parked for depth in depths) + beside.num_jobs
    num_tokens = sum(depth.num_tokens for depth in depths) + beside.num_tokens
    return Bound(
        f"The {TIERS[new.tier]} queue of '{new.model}'",
        Load(num_jobs, num_tokens),
        Load(services.settings.max_queued_jobs, services.settings.max_queued_tokens),
        ("HEADRACE_MAX_QUEUED_JOBS", "HEADRACE_MAX_QUEUED_TOKENS"),
        drain=lambda: _queue_drain(services, new),
    )


async def _key_bound(services: Services, new: Newcomer, beside: Load, stale_seconds: float) -> Bound:
    async def load() -> Load:
        async with services.autocommit() as session:
            return await job_queries.key_load(session, new.key_id, of_batches=new.is_line)

    waiting = await services.key_loads.get((new.key_id, new.is_line), load, stale_seconds=stale_seconds)
    return Bound(
        "This key",
        Load(waiting.num_jobs + beside.num_jobs, waiting.num_tokens + beside.num_tokens),
        Load(services.settings.max_queued_jobs_per_key, services.settings.max_queued_tokens_per_key),
        ("HEADRACE_MAX_QUEUED_JOBS_PER_KEY", "HEADRACE_MAX_QUEUED_TOKENS_PER_KEY"),
        drain=lambda: key_drain(services, new.key_id),
    )


async def _queue_drain(services: Services, new: Newcomer) -> Drain:
    async def load() -> Drain:
        async with services.autocommit() as session:
            return await rates.queue_drain(session, new.model, new.tier)

    return await services.drains.get((new.model, new.tier), load)


async def key_drain(services: Services, key_id: UUID) -> Drain:
    """How fast a key's own jobs started in the last minute; at most a second old."""

    async def load() -> Drain:
        async with services.autocommit() as session:
            return await rates.key_drain(session, key_id)

    return await services.drains.get(key_id, load)


def retry_seconds(bound: Bound, over: Load, drain: Drain) -> float:
    """Seconds until what is too much, and a hundredth of the queue more, has started at the measured rate."""
    waits = []
    if over.num_jobs:
        waits.append(drain_seconds(over.num_jobs + bound.most.num_jobs * ROOM_FRACTION, drain.jobs_per_second))
    if over.num_tokens:
        waits.append(drain_seconds(over.num_tokens + bound.most.num_tokens * ROOM_FRACTION, drain.tokens_per_second))
    return bounded(max(waits))


def bounded(seconds: float) -> float:
    """The time that a client is told for `seconds`: never none, and none that it would not wait."""
    return min(MAX_RETRY_SECONDS, max(1.0, seconds))


def drain_seconds(amount: float, per_second: float) -> float:
    """Seconds until so much is through, also where no rate could be measured."""
    return amount / per_second if per_second > 0 else DEFAULT_RETRY_SECONDS


def _queue_full(services: Services, new: Newcomer, bound: Bound, drain: Drain) -> ApiError:
    over = bound.over(new.num_tokens)
    services.metrics.refused.labels(new.model, TIERS[new.tier]).inc()
    seconds = retry_seconds(bound, over, drain)
    return ApiError(429, _message(new, bound, over, drain, seconds), code="queue_full", headers=retry_after(seconds))


def _message(new: Newcomer, bound: Bound, over: Load, drain: Drain, seconds: float) -> str:
    """`The normal queue of 'm' has 9 of at most 9 jobs waiting. Nothing was queued; ...`: numbers, and the way out."""
    if over.num_jobs:
        fact = f"{bound.load.num_jobs:,} of at most {bound.most.num_jobs:,} jobs waiting"
        pace, setting = f"{drain.jobs_per_second:,.3g} jobs", bound.settings[0]
    else:
        fact = (
            f"{bound.load.num_tokens:,} of at most {bound.most.num_tokens:,} tokens waiting, in prompts and "
            f"max_tokens, and this job has {new.num_tokens:,}"
        )
        pace, setting = f"{drain.tokens_per_second:,.3g} tokens", bound.settings[1]
    measured = f"lately {pace} a second started" if drain.jobs_per_second > 0 else "none started lately"
    return (
        f"{bound.name} has {fact}. Nothing was queued; {measured}, so try again in about {seconds:.0f} s. "
        f"The operator can raise {setting}."
    )
