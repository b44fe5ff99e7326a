"""Ended jobs made again: which ones, and each as the new job that repeats it. Nothing here changes a row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Text, cast, exists, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from db.job_filter import JobFilter, has_replay, matching
from db.models import ENDED, IdempotencyKey, Job, JobInput
from db.sampling import Sampling
from db.submits import NewJob

IS_ENDED = text(f"jobs.status IN ({', '.join(repr(str(status)) for status in ENDED)})")


@dataclass(frozen=True)
class Limits:
    """The limits in time of a replay; `run_for` is the job's own when None."""

    start_by: datetime | None = None
    finish_by: datetime | None = None
    run_for: float | None = None  # seconds


async def lock(session: AsyncSession, tenant: str) -> None:
    """Let one transaction at a time replay by filter for the tenant: what one has replayed, the next one sees."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"headrace replay {tenant}", 0))))


def key_of(key: str | None, job_id: UUID) -> str | None:
    """The Idempotency-Key of one job's replay, of a call for many that has `key`."""
    return None if key is None else f"{key}/{job_id}"


async def page(
    session: AsyncSession,
    tenant: str,
    *,
    wanted: JobFilter,
    limit: int,
    after: UUID | None = None,
    key: str | None = None,
) -> list[Job]:
    """The tenant's ended jobs that are `wanted`, the oldest first, from after the job `after` on.

    Where jobs without a replay are wanted, those replayed under the Idempotency-Key `key` count as such.
    """
    statement = select(Job).where(*_conditions(tenant, wanted, key), IS_ENDED).order_by(Job.id).limit(limit)
    if wanted.metadata:
        statement = statement.join(JobInput, JobInput.job_id == Job.id)
    if after is not None:
        statement = statement.where(Job.id > after)
    return list(await session.scalars(statement))


async def still_wanted(
    session: AsyncSession, tenant: str, job_ids: Sequence[UUID], *, wanted: JobFilter, key: str | None
) -> list[Job]:
    """Those of a page's jobs that are `wanted` still: nobody has replayed or deleted them since. Under the `lock`."""
    may_be = replace(wanted, metadata={})  # it does not change
    statement = select(Job).where(Job.id.in_(job_ids), *_conditions(tenant, may_be, key)).order_by(Job.id)
    return list(await session.scalars(statement))


async def body(session: AsyncSession, job_id: UUID) -> JobInput | None:
    """What was sent with the job; None when it was deleted."""
    found: JobInput | None = await session.scalar(select(JobInput).where(JobInput.job_id == job_id))
    return found


def _conditions(tenant: str, wanted: JobFilter, key: str | None) -> list[ColumnElement[bool]]:
    if wanted.is_replayed is not False or key is None:
        return matching(tenant, wanted)
    own_key = func.concat(key, "/", cast(Job.id, Text))  # as `key_of` spells it
    is_own = exists(select(IdempotencyKey.key).where(IdempotencyKey.tenant == tenant, IdempotencyKey.key == own_key))
    return [*matching(tenant, replace(wanted, is_replayed=None)), or_(~has_replay(), is_own)]


def repeat(
    job: Job,
    body: JobInput,
    *,
    key_id: UUID,
    num_blocks: int,
    limits: Limits,
    idempotency_key: str | None,
    body_digest: bytes,
) -> NewJob:
    """The same prompt, sampling, seed, metadata, webhook and dress as a new job of `key_id`, with fresh limits."""
    return NewJob(
        tenant=job.tenant,
        key_id=key_id,
        kind=job.kind,
        model=job.model,
        tier=job.tier,
        stream=job.stream,
        prompt=body.prompt,
        messages=body.messages,
        prompt_token_ids=body.prompt_token_ids,
        sampling=Sampling.model_validate(body.sampling),
        max_tokens=job.max_tokens,
        num_blocks=num_blocks,
        seed=job.seed,
        webhook_url=body.webhook_url,
        metadata=body.metadata_,
        request=body.request,
        start_by=limits.start_by,
        finish_by=limits.finish_by,
        run_for=job.run_for if limits.run_for is None else limits.run_for,
        replay_of=job.id,
        idempotency_key=idempotency_key,
        body_digest=body_digest,
    )
