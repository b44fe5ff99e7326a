"""Reading jobs: one, a page of them, a place in the queue, the depth and pace of queues. Nothing here changes a row."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, and_, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from db.models import Job, JobInput, JobOutput
from db.order import Ahead, aged_bound, jobs_ahead
from db.settings import TIERS, Settings

# Literals, so that the partial indexes serve a prepared statement too.
QUEUED, RUNNING = text("'queued'"), text("'running'")


@dataclass(frozen=True)
class JobRow:
    """A job with its bodies; `output` is None until it ended with one.

    In lists, `input` has the webhook URL and the metadata alone, and there is no `output`.
    """

    job: Job
    input: JobInput
    output: JobOutput | None


@dataclass(frozen=True)
class Depth:
    """How much of a model's tier waits and runs. `parked` wait for their key's window."""

    model: str
    tier: int
    ready: int
    parked: int
    running: int
    oldest_ready_at: float | None  # Unix seconds


async def get(session: AsyncSession, tenant: str, job_id: UUID) -> JobRow | None:
    """A job of the tenant's; None when it has no such job."""
    row = (await session.execute(_with_bodies().where(Job.id == job_id, Job.tenant == tenant))).one_or_none()
    return None if row is None else _job_row(row)


async def list_jobs(
    session: AsyncSession,
    tenant: str,
    *,
    limit: int,
    after: UUID | None = None,
    status: str | None = None,
    tier: int | None = None,
    model: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> list[JobRow]:
    """The tenant's jobs, the newest first, from after the job `after` on; all given filters must match.

    Prompts and outputs, which may be megabytes each, stay where they are.
    """
    shown = load_only(JobInput.webhook_url, JobInput.metadata_, raiseload=True)
    with_input = select(Job, JobInput).join(JobInput, JobInput.job_id == Job.id).options(shown)
    statement = with_input.where(Job.tenant == tenant).order_by(Job.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(Job.id < after)
    if status is not None:
        statement = statement.where(Job.status == status)
    if tier is not None:
        statement = statement.where(Job.tier == tier)
    if model is not None:
        statement = statement.where(Job.model == model)
    if metadata:
        statement = statement.where(JobInput.metadata_.contains(metadata))
    return [JobRow(job, input, None) for job, input in await session.execute(statement)]


async def statuses(session: AsyncSession, job_ids: Collection[UUID]) -> dict[UUID, str]:
    """The states of these jobs, for readers whose streams went quiet; deleted ones are left out."""
    rows = await session.execute(select(Job.id, Job.status).where(Job.id.in_(job_ids)))
    return {row.id: row.status for row in rows}


async def num_unstarted(session: AsyncSession, key_id: UUID) -> int:
    """How many queued jobs the key has, in all models and tiers."""
    queued = select(func.count()).where(Job.key_id == key_id, Job.status == QUEUED)
    ready = queued.where(Job.ready_at.is_not(None)).scalar_subquery()  # an index each
    parked = queued.where(Job.ready_at.is_(None)).scalar_subquery()
    num_jobs: int = (await session.execute(select(ready + parked))).scalar_one()
    return num_jobs


async def queue_depths(session: AsyncSession) -> list[Depth]:
    """Every model's and tier's depth, where anything waits or runs."""
    is_queued = Job.status == QUEUED
    statement = (
        select(
            Job.model,
            Job.tier,
            func.count().filter(is_queued, Job.ready_at.is_not(None)),
            func.count().filter(is_queued, Job.ready_at.is_(None)),
            func.count().filter(Job.status == RUNNING),
            func.extract("epoch", func.min(Job.ready_at).filter(is_queued)),
        )
        .where(or_(is_queued, Job.status == RUNNING))
        .group_by(Job.model, Job.tier)
        .order_by(Job.model, Job.tier)
    )
    return [
        Depth(model, tier, ready, parked, running, None if oldest is None else float(oldest))
        for model, tier, ready, parked, running, oldest in await session.execute(statement)
    ]


async def start_rate(session: AsyncSession, model: str, window_seconds: float = 60.0) -> float:
    """Jobs of the model started per second, over the window or since the first start within it; 0 when none did."""
    now = func.clock_timestamp()
    statement = select(func.count(), func.extract("epoch", now - func.min(Job.started_at))).where(
        Job.model == model, Job.started_at > now - timedelta(seconds=window_seconds)
    )
    num_started, seconds = (await session.execute(statement)).one()
    return num_started / max(1.0, float(seconds)) if num_started else 0.0


async def position(session: AsyncSession, job: Job, settings: Settings, now: datetime | None = None) -> int | None:
    """The job's place among its model's queued jobs, 1 for the next; None when it is queued no more.

    Parked jobs come after all ready ones, in order of tier and age. `now` replaces the Postgres clock.
    """
    columns = (Job.ready_at, func.clock_timestamp())
    found = (await session.execute(select(*columns).where(Job.id == job.id, Job.status == QUEUED))).one_or_none()
    if found is None:
        return None
    ready_at, now = found[0], now or found[1]
    if ready_at is None:
        return await _parked_position(session, job)
    ahead = await _count_ahead(session, job, ready_at, now, settings)
    if settings.queue_policy == "fcfs":
        return 1 + sum(tier.aged for tier in ahead)
    return 1 + jobs_ahead(
        better=ahead[: job.tier],
        same=ahead[job.tier].aged,
        lifted=sum(tier.aged for tier in ahead[job.tier + 1 :]),
    )


async def _count_ahead(
    session: AsyncSession, job: Job, ready_at: datetime, now: datetime, settings: Settings
) -> list[Ahead]:
    """For each tier, in one statement of index range counts. Of worse tiers only what goes before is counted."""
    counts = []
    for tier in range(len(TIERS)):
        ready = select(func.count()).where(
            Job.model == job.model, Job.tier == tier, Job.status == QUEUED, Job.ready_at.is_not(None)
        )
        bound = aged_bound(tier, job.tier, ready_at, now, settings)
        aged = ready.where(Job.ready_at <= bound, or_(Job.ready_at < bound, Job.id < job.id))
        counts += [(ready if tier < job.tier else aged).scalar_subquery(), aged.scalar_subquery()]
    row = (await session.execute(select(*counts))).one()
    return [Ahead(waiting, aged) for waiting, aged in zip(row[::2], row[1::2], strict=True)]


async def _parked_position(session: AsyncSession, job: Job) -> int:
    is_before = or_(Job.ready_at.is_not(None), Job.tier < job.tier, and_(Job.tier == job.tier, Job.id < job.id))
    statement = select(func.count()).where(Job.model == job.model, Job.status == QUEUED, is_before)
    return 1 + (await session.execute(statement)).scalar_one()


def _with_bodies() -> Select[tuple[Job, JobInput, JobOutput]]:
    return (
        select(Job, JobInput, JobOutput)
        .join(JobInput, JobInput.job_id == Job.id)
        .outerjoin(JobOutput, JobOutput.job_id == Job.id)
    )


def _job_row(row: Row[tuple[Job, JobInput, JobOutput]]) -> JobRow:
    return JobRow(row[0], row[1], row[2])
