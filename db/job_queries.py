"""Reading jobs: one, a page of them, a place in the queue, the depth of queues. Nothing here changes a row."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Row, Select, and_, cast, func, or_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from db.job_filter import ANY_JOB, JobFilter, matching
from db.models import Job, JobInput, JobOutput
from db.order import Ahead, aged_bound, jobs_ahead
from db.settings import TIERS, Settings

# Literals, so that the partial indexes serve a prepared statement too.
QUEUED, RUNNING = text("'queued'"), text("'running'")
JOB_TOKENS = cast(Job.num_prompt_tokens, BigInteger) + Job.max_tokens
NUM_TOKENS = func.coalesce(func.sum(JOB_TOKENS), 0)


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
    num_tokens: int  # of the prompts and `max_tokens` of those that wait


@dataclass(frozen=True)
class Load:
    """How much waits: jobs, and the tokens of their prompts and `max_tokens`."""

    num_jobs: int
    num_tokens: int


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
    wanted: JobFilter = ANY_JOB,
) -> list[JobRow]:
    """The tenant's jobs that are `wanted`, the newest first, from after the job `after` on.

    Prompts and outputs, which may be megabytes each, stay where they are.
    """
    shown = load_only(JobInput.webhook_url, JobInput.metadata_, raiseload=True)
    with_input = select(Job, JobInput).join(JobInput, JobInput.job_id == Job.id).options(shown)
    statement = with_input.where(*matching(tenant, wanted)).order_by(Job.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(Job.id < after)
    return [JobRow(job, input, None) for job, input in await session.execute(statement)]


async def statuses(session: AsyncSession, job_ids: Collection[UUID]) -> dict[UUID, str]:
    """The states of these jobs, for readers whose streams went quiet; deleted ones are left out."""
    rows = await session.execute(select(Job.id, Job.status).where(Job.id.in_(job_ids)))
    return {row.id: row.status for row in rows}


async def key_load(session: AsyncSession, key_id: UUID) -> Load:
    """What waits of the key's, in all models and tiers."""
    queued = select(func.count().label("jobs"), NUM_TOKENS.label("tokens")).where(
        Job.key_id == key_id, Job.status == QUEUED
    )
    parts = union_all(queued.where(Job.ready_at.is_not(None)), queued.where(Job.ready_at.is_(None))).subquery()
    row = (await session.execute(select(func.sum(parts.c.jobs), func.sum(parts.c.tokens)))).one()  # an index each
    return Load(int(row[0]), int(row[1]))


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
            func.coalesce(func.sum(JOB_TOKENS).filter(is_queued), 0),
        )
        .where(or_(is_queued, Job.status == RUNNING))
        .group_by(Job.model, Job.tier)
        .order_by(Job.model, Job.tier)
    )
    return [
        Depth(model, tier, ready, parked, running, None if oldest is None else float(oldest), int(num_tokens))
        for model, tier, ready, parked, running, oldest, num_tokens in await session.execute(statement)
    ]


# As text, because every submit asks it: building and compiling it costs more than running it. One range of an index
# for each tier; of worse tiers only what goes before is counted.
STANDING = text("SELECT ready_at, clock_timestamp() AS now FROM jobs WHERE id = :job_id AND status = 'queued'")
AHEAD = text("""
    SELECT counted.waiting, counted.aged
    FROM unnest(CAST(:bounds AS timestamptz[])) WITH ORDINALITY AS tiers(bound, number), LATERAL (
        SELECT count(*) AS waiting,
               count(*) FILTER (WHERE (ready_at, id) < (tiers.bound, CAST(:job_id AS uuid))) AS aged
        FROM jobs
        WHERE model = :model AND tier = CAST(tiers.number - 1 AS smallint) AND status = 'queued'
          AND ready_at <= CASE WHEN tiers.number - 1 < :tier THEN 'infinity' ELSE tiers.bound END
          AND (tiers.number - 1 < :tier OR (ready_at, id) < (tiers.bound, CAST(:job_id AS uuid)))
    ) AS counted
    ORDER BY tiers.number
""")


async def position(session: AsyncSession, job: Job, settings: Settings, now: datetime | None = None) -> int | None:
    """The job's place among its model's queued jobs, 1 for the next; None when it is queued no more.

    Parked jobs come after all ready ones, in order of tier and age. `now` replaces the Postgres clock.
    """
    found = (await session.execute(STANDING, {"job_id": job.id})).one_or_none()
    if found is None:
        return None
    ready_at, now = found.ready_at, now or found.now
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
    """For each tier, how much waits and how much of it goes before by age."""
    bounds = [aged_bound(tier, job.tier, ready_at, now, settings) for tier in range(len(TIERS))]
    parameters = {"bounds": bounds, "job_id": job.id, "model": job.model, "tier": job.tier}
    return [Ahead(row.waiting, row.aged) for row in await session.execute(AHEAD, parameters)]


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
