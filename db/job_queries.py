"""Reading jobs: one, a page of them, a place in the queue, the depth of queues. Nothing here changes a row."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Row, Select, cast, func, or_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from db.job_filter import ANY_JOB, JobFilter, matching
from db.models import Job, JobInput, JobOutput
from db.order import Ahead, jobs_ahead
from db.settings import TIERS, Settings

# Literals, so that the partial indexes serve a prepared statement too.
QUEUED, RUNNING = text("'queued'"), text("'running'")
JOB_TOKENS = cast(Job.num_prompt_tokens, BigInteger) + cast(Job.max_tokens, BigInteger) * Job.num_choices
LONGEST_SECONDS = 1e10  # a time that long before now is before every job
NUM_TOKENS = func.coalesce(func.sum(JOB_TOKENS), 0)


@dataclass(frozen=True)
class JobRow:
    """A job with its bodies; `output` is None until it ended with one.

    In lists, `input` has the webhook URL and the metadata alone, and there is no `output`.
    """

    job: Job
    input: JobInput
    output: JobOutput | None
    position: int | None = None  # where it was counted when the job was made


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


# An array, and not a thousand parameters; the limit makes it a look into one partition's index for each.
STATUSES = text("""
    SELECT found.id, found.status FROM unnest(CAST(:job_ids AS uuid[])) AS wanted(id), LATERAL (
        SELECT id, status FROM jobs WHERE jobs.id = wanted.id LIMIT 1
    ) AS found
""")


async def statuses(session: AsyncSession, job_ids: Collection[UUID]) -> dict[UUID, str]:
    """The states of these jobs, for readers whose streams went quiet; deleted ones are left out."""
    rows = await session.execute(STATUSES, {"job_ids": list(job_ids)})
    return {row.id: row.status for row in rows}


async def key_load(session: AsyncSession, key_id: UUID, *, of_batches: bool) -> Load:
    """What waits of the key's, in all models and tiers: of its own submits, or of the lines of its batches."""
    queued = select(func.count().label("jobs"), NUM_TOKENS.label("tokens")).where(
        Job.key_id == key_id, Job.status == QUEUED, Job.batch_id.is_not(None) if of_batches else Job.batch_id.is_(None)
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
#
# The order is lua/pop.lua's, (aged level, ready_at). `reaches`: jobs of a tier that became ready before it have aged
# down to this one's level. `bound`: those before it go before this one. With `fcfs` all levels are 0.
AHEAD = text("""
    WITH self AS MATERIALIZED (
        SELECT id, tier, ready_at, now, greatest(
            0, level - :boost * greatest(0, extract(epoch FROM now - ready_at)::float8 - :threshold)
        ) AS aged
        FROM (
            SELECT id, tier, ready_at, (CAST(:levels AS float8[]))[tier + 1] AS level,
                   coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now
            FROM jobs WHERE id = :job_id AND status = 'queued' AND ready_at IS NOT NULL
        ) AS found
    ), bounds AS MATERIALIZED (
        SELECT self.*, other, CASE
            WHEN other = tier OR level = 0 AND aged = 0 THEN ready_at
            WHEN level < aged THEN now
            WHEN aged = 0 THEN least(ready_at, reaches)
            ELSE reaches END AS bound
        FROM self, LATERAL (
            SELECT level, CAST(number - 1 AS smallint) AS other,
                   now - make_interval(secs => least(:longest, :threshold + (level - aged) / nullif(:boost, 0)))
                   AS reaches
            FROM unnest(CAST(:levels AS float8[])) WITH ORDINALITY AS tiers(level, number)
        ) AS others
    )
    SELECT counted.waiting, counted.aged
    FROM bounds, LATERAL (
        SELECT count(*) AS waiting,
               count(*) FILTER (WHERE (jobs.ready_at, jobs.id) < (bounds.bound, bounds.id)) AS aged
        FROM jobs
        WHERE jobs.model = :model AND jobs.tier = bounds.other AND jobs.status = 'queued'
          AND jobs.ready_at <= CASE WHEN bounds.other < bounds.tier THEN 'infinity' ELSE bounds.bound END
          AND (bounds.other < bounds.tier OR (jobs.ready_at, jobs.id) < (bounds.bound, bounds.id))
    ) AS counted
    ORDER BY bounds.other
""")
PARKED_POSITION = text("""
    SELECT CASE WHEN status = 'queued' THEN (
        SELECT 1 + count(*) FROM jobs
        WHERE model = self.model AND status = 'queued'
          AND (ready_at IS NOT NULL OR (tier, id) < (self.tier, self.id))
    ) END
    FROM jobs AS self WHERE id = :job_id
""")


async def position(session: AsyncSession, job: Job, settings: Settings, now: datetime | None = None) -> int | None:
    """The place of `job`, as it was just read, among its model's queued jobs, 1 for the next; None: queued no more.

    Parked jobs come after all ready ones, in order of tier and age. `now` replaces the Postgres clock.
    """
    return (await _places(session, [job], settings, now)).get(job.id)


async def positions(session: AsyncSession, jobs: Sequence[Job], settings: Settings) -> dict[UUID, int]:
    """The places of jobs that were just made, one right after the other; those that are queued no more are left out.

    Of each line, the last of them is counted for, and the others stand before it.
    """
    places: dict[UUID, int] = {}
    for _, line in groupby(sorted(jobs, key=_in_line), key=lambda job: _in_line(job)[:3]):
        places |= await _places(session, list(line), settings, None)
    return places


def _in_line(job: Job) -> tuple[Any, ...]:
    """Its line, and where it stands in it."""
    return (job.model, job.tier, job.ready_at is None, job.ready_at or 0, job.id)


async def _places(
    session: AsyncSession, line: Sequence[Job], settings: Settings, now: datetime | None
) -> dict[UUID, int]:
    """Of jobs that stand one right behind the other, in their order."""
    last, behind = line[-1], {job.id: len(line) - number for number, job in enumerate(line, 1)}
    if last.ready_at is None:
        number = await session.scalar(PARKED_POSITION, {"job_id": last.id})
        return {} if number is None else {job_id: number - num_behind for job_id, num_behind in behind.items()}
    ahead = await _count_ahead(session, last, settings, now)
    return {job_id: _place(ahead, last.tier, num_behind, settings) for job_id, num_behind in behind.items() if ahead}


def _place(ahead: Sequence[Ahead], tier: int, num_behind: int, settings: Settings) -> int:
    """Of the job that stands so many before the one that has these ahead of it."""
    if settings.queue_policy == "fcfs":
        return 1 + sum(each.aged for each in ahead) - num_behind
    lifted = sum(each.aged for each in ahead[tier + 1 :])
    return 1 + jobs_ahead(better=ahead[:tier], same=ahead[tier].aged - num_behind, lifted=lifted)


async def _count_ahead(session: AsyncSession, job: Job, settings: Settings, now: datetime | None) -> list[Ahead]:
    """For each tier, how much waits and how much of it goes before by age; empty when the job is queued no more."""
    parameters = {
        "job_id": job.id,
        "model": job.model,
        "now": now,
        "levels": [0.0 if settings.queue_policy == "fcfs" else float(level) for level in range(len(TIERS))],
        "threshold": settings.aging_threshold_seconds,
        "boost": settings.aging_boost,
        "longest": LONGEST_SECONDS,
    }
    return [Ahead(*row) for row in await session.execute(AHEAD, parameters)]


def _with_bodies() -> Select[tuple[Job, JobInput, JobOutput]]:
    return (
        select(Job, JobInput, JobOutput)
        .join(JobInput, JobInput.job_id == Job.id)
        .outerjoin(JobOutput, JobOutput.job_id == Job.id)
    )


def _job_row(row: Row[tuple[Job, JobInput, JobOutput]]) -> JobRow:
    return JobRow(row[0], row[1], row[2])
