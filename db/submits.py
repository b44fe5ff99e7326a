"""A job's beginning: the idempotency row, the key's window, the job and its body, in the caller's one transaction."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, select, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from db.ids import new_id
from db.models import IdempotencyKey, Job
from db.queue import Ready
from db.sampling import Sampling
from db.webhook_url import lane_host


class IdempotencyMismatch(Exception):
    """This Idempotency-Key was used before, with another body."""


@dataclass(frozen=True)
class NewJob:
    """A submit that was checked. `tier` is the level: 0 high, 1 normal, 2 low."""

    tenant: str
    key_id: UUID
    kind: str  # job | completion | chat | response | embedding
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
    request: dict[str, Any] | None = None  # what only its dress needs to answer
    start_by: datetime | None = None
    finish_by: datetime | None = None
    run_for: float | None = None  # seconds
    replay_of: UUID | None = None  # the ended job that this one repeats
    batch_id: UUID | None = None  # the batch that it is a line of
    idempotency_key: str | None = None
    body_digest: bytes = b""


@dataclass(frozen=True)
class Created:
    """A submitted job. `ready` is to be published after the commit; None when it is parked, or was there before."""

    job: Job
    ready: Ready | None
    is_new: bool
    position: int | None = None  # in the queue, where it was counted


# One round trip for any number of jobs, and no statement to build: this is what a submit costs. Each key's window is
# counted once, in at most `key_window` entries of an index; the jobs themselves fill it in their order.
SUBMIT = text("""
        WITH given AS (
            SELECT *, row_number() OVER (PARTITION BY key_id, model, tier ORDER BY number) AS number_of_key
            FROM jsonb_to_recordset(:jobs) AS given(
                number int, id uuid, tenant text, key_id uuid, kind text, model text, tier smallint, stream boolean,
                seed bigint, num_prompt_tokens int, max_tokens int, num_blocks int, start_by timestamptz,
                finish_by timestamptz, run_for float8, replay_of uuid, batch_id uuid, prompt text, messages jsonb,
                prompt_token_ids int[], sampling jsonb, webhook_url text,
                webhook_host text, metadata jsonb, request jsonb
            )
        ), windows AS (
            SELECT *, CASE WHEN EXISTS (
                SELECT 1 FROM jobs
                WHERE key_id = keys.key_id AND model = keys.model AND tier = keys.tier
                  AND status = 'queued' AND ready_at IS NULL
            ) THEN 0 ELSE :key_window - (
                SELECT count(*) FROM (
                    SELECT 1 FROM jobs
                    WHERE key_id = keys.key_id AND model = keys.model AND tier = keys.tier
                      AND status = 'queued' AND ready_at IS NOT NULL
                    LIMIT :key_window
                ) AS ready
            ) END AS num_free
            FROM (SELECT DISTINCT key_id, model, tier FROM given) AS keys
        ), job AS (
            INSERT INTO jobs (
                id, tenant, key_id, kind, model, tier, stream, seed, num_prompt_tokens, max_tokens, num_blocks,
                num_choices, start_by, finish_by, run_for, replay_of, batch_id, ready_at
            )
            SELECT
                id, tenant, key_id, kind, model, tier, stream, seed, num_prompt_tokens, max_tokens, num_blocks,
                (sampling->>'n')::smallint, start_by, finish_by, run_for, replay_of, batch_id,
                CASE WHEN number_of_key <= num_free THEN clock_timestamp() END
            FROM given JOIN windows USING (key_id, model, tier)
            ORDER BY number
            RETURNING *
        ), body AS (
            INSERT INTO job_inputs (
                job_id, prompt, messages, prompt_token_ids, sampling, webhook_url, webhook_host, metadata, request
            )
            SELECT id, prompt, messages, prompt_token_ids, sampling, webhook_url, webhook_host, metadata,
                request
            FROM given
        )
        SELECT * FROM job
    """).bindparams(bindparam("jobs", type_=JSONB))
AS_GIVEN = (
    *("tenant", "kind", "model", "tier", "stream", "max_tokens", "num_blocks", "run_for"),
    *("prompt", "messages", "prompt_token_ids", "webhook_url", "metadata", "request"),
)
AS_TEXT = ("key_id", "start_by", "finish_by", "replay_of", "batch_id")


async def create(session: AsyncSession, new: NewJob, *, key_window: int) -> Created:
    """Insert a job, or return the one that the same Idempotency-Key made before; raises IdempotencyMismatch.

    The job is parked when `key_window` jobs of its key are ready in its tier, or others of them are parked already.
    """
    job_id = new_id()
    if new.idempotency_key is not None:
        first = await _claim_key(session, new, new.idempotency_key, job_id)
        if first is not None:
            return Created(first, ready=None, is_new=False)
    [created] = await _insert(session, {job_id: new}, key_window)
    return created


async def create_many(session: AsyncSession, news: Sequence[NewJob], *, key_window: int) -> list[Created]:
    """Insert jobs that came without an Idempotency-Key, all or none, in their order."""
    return await _insert(session, {new_id(): new for new in news}, key_window)


async def _insert(session: AsyncSession, news: Mapping[UUID, NewJob], key_window: int) -> list[Created]:
    rows = [_row(number, job_id, new) for number, (job_id, new) in enumerate(news.items())]
    inserted = await session.execute(SUBMIT, {"jobs": rows, "key_window": key_window})
    jobs = {row.id: Job(**row._mapping) for row in inserted}  # none of the session's: that would cost as much again
    readies = {job.id: Ready.of(job) for job in jobs.values() if job.ready_at is not None}
    return [Created(jobs[job_id], readies.get(job_id), is_new=True) for job_id in news]


def _row(number: int, job_id: UUID, new: NewJob) -> dict[str, Any]:
    """The job as JSON, and its number among those that are inserted with it."""
    texts = {name: getattr(new, name) for name in AS_TEXT}
    return {
        **{name: getattr(new, name) for name in AS_GIVEN},
        **{name: None if value is None else str(value) for name, value in texts.items()},
        "number": number,
        "id": str(job_id),
        "seed": secrets.randbits(63) if new.seed is None else new.seed,
        "num_prompt_tokens": len(new.prompt_token_ids),
        "sampling": new.sampling.model_dump(mode="json"),
        "webhook_host": None if new.webhook_url is None else lane_host(new.webhook_url),
    }


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
