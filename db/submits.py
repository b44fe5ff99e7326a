"""A job's beginning: the idempotency row, the key's window, the job and its body, in the caller's one transaction."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Integer, bindparam, delete, select, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from db.base import NULLABLE_JSONB
from db.ids import new_id
from db.models import IdempotencyKey, Job
from db.queue import Ready
from db.sampling import Sampling


class IdempotencyMismatch(Exception):
    """This Idempotency-Key was used before, with another body."""


@dataclass(frozen=True)
class NewJob:
    """A submit that was checked. `tier` is the level: 0 high, 1 normal, 2 low."""

    tenant: str
    key_id: UUID
    kind: str  # job | completion
    model: str
    tier: int
    stream: bool
    prompt: str | None
    messages: list[dict[str, Any]] | None
    prompt_token_ids: list[int]
    sampling: Sampling
    max_tokens: int
    num_blocks: int
    seed: int | None = None  # None: a random one is drawn
    webhook_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    start_by: datetime | None = None
    finish_by: datetime | None = None
    run_for: float | None = None  # seconds
    replay_of: UUID | None = None  # the ended job that this one repeats
    idempotency_key: str | None = None
    body_digest: bytes = b""


@dataclass(frozen=True)
class Created:
    """A submitted job. `ready` is to be published after the commit; None when it is parked, or was there before."""

    job: Job
    ready: Ready | None
    is_new: bool


# One round trip, and no statement to build: this is what a submit costs. The window is counted in at most `key_window`
# entries of an index.
SUBMIT = select(Job).from_statement(
    text("""
        WITH job AS (
            INSERT INTO jobs (
                id, tenant, key_id, kind, model, tier, stream, seed, num_prompt_tokens, max_tokens, num_blocks,
                start_by, finish_by, run_for, replay_of, ready_at
            )
            SELECT
                :id, :tenant, :key_id, :kind, :model, :tier, :stream, :seed, :num_prompt_tokens, :max_tokens,
                :num_blocks, :start_by, :finish_by, :run_for, :replay_of,
                CASE WHEN EXISTS (
                    SELECT 1 FROM jobs
                    WHERE key_id = :key_id AND model = :model AND tier = :tier
                      AND status = 'queued' AND ready_at IS NULL
                ) OR :key_window <= (
                    SELECT count(*) FROM (
                        SELECT 1 FROM jobs
                        WHERE key_id = :key_id AND model = :model AND tier = :tier
                          AND status = 'queued' AND ready_at IS NOT NULL
                        LIMIT :key_window
                    ) AS ready
                ) THEN NULL ELSE clock_timestamp() END
            RETURNING *
        ), body AS (
            INSERT INTO job_inputs (job_id, prompt, messages, prompt_token_ids, sampling, webhook_url, metadata)
            VALUES (:id, :prompt, :messages, :prompt_token_ids, :sampling, :webhook_url, :metadata)
        )
        SELECT * FROM job
    """).bindparams(
        bindparam("messages", type_=NULLABLE_JSONB),
        bindparam("prompt_token_ids", type_=ARRAY(Integer)),
        bindparam("sampling", type_=JSONB),
        bindparam("metadata", type_=JSONB),
    )
)
AS_GIVEN = (
    *("tenant", "key_id", "kind", "model", "tier", "stream", "max_tokens", "num_blocks", "start_by", "finish_by"),
    *("run_for", "replay_of", "prompt", "messages", "prompt_token_ids", "webhook_url", "metadata"),
)


async def create(session: AsyncSession, new: NewJob, *, key_window: int) -> Created:
    """Insert a job, or return the one that the same Idempotency-Key made before; raises IdempotencyMismatch.

    The job is parked when `key_window` jobs of its key are ready in its tier, or others of them are parked already.
    """
    job_id = new_id()
    if new.idempotency_key is not None:
        first = await _claim_key(session, new, new.idempotency_key, job_id)
        if first is not None:
            return Created(first, ready=None, is_new=False)
    parameters = {name: getattr(new, name) for name in AS_GIVEN} | {
        "id": job_id,
        "seed": secrets.randbits(63) if new.seed is None else new.seed,
        "num_prompt_tokens": len(new.prompt_token_ids),
        "sampling": new.sampling.model_dump(mode="json"),
        "key_window": key_window,
    }
    job = (await session.scalars(SUBMIT, parameters)).one()
    return Created(job, None if job.ready_at is None else Ready.of(job), is_new=True)


async def earlier(session: AsyncSession, tenant: str, key: str, body_digest: bytes) -> Job | None:
    """The job that this Idempotency-Key made before, or None; raises IdempotencyMismatch when the body was another.

    A key whose job is gone, with its day or by a delete that was quicker than this, is as good as new.
    """
    claims = select(IdempotencyKey).filter_by(tenant=tenant, key=key).execution_options(populate_existing=True)
    claim: IdempotencyKey | None = await session.scalar(claims)
    if claim is None:
        return None
    job: Job | None = await session.scalar(select(Job).where(Job.id == claim.job_id))
    if job is not None and claim.body_digest != body_digest:
        raise IdempotencyMismatch(f"Idempotency-Key {key!r} was used with another body")
    return job


async def _claim_key(session: AsyncSession, new: NewJob, key: str, job_id: UUID) -> Job | None:
    """Claim the Idempotency-Key for `job_id`, or return the job that has it. Waits for a copy still in flight."""
    row = {"tenant": new.tenant, "key": key}
    claim = (
        insert(IdempotencyKey)
        .values(**row, body_digest=new.body_digest, job_id=job_id)
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.job_id)
    )
    is_jobless = ~select(Job.id).where(Job.id == IdempotencyKey.job_id).exists()
    while await session.scalar(claim) is None:
        job = await earlier(session, new.tenant, key, new.body_digest)
        if job is not None:
            return job
        await session.execute(delete(IdempotencyKey).filter_by(**row).where(is_jobless))
    return None
