"""How jobs end: terminal state, usage, output, webhook event and its deliveries, all in one transaction."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db import outputs
from db.events import EVENTS, event_ids, write_events
from db.models import ENDED, Job, Status
from db.queue_message import Ready
from db.stream import Token
from db.texts import storable


@dataclass(frozen=True)
class End:
    """How a worker's attempt at a job ended. The lists have one entry per output token."""

    job_id: UUID
    attempt: int
    worker_id: UUID
    status: Status
    finish_reason: str | None  # stop | length, of a succeeded job
    text: str
    token_ids: list[int]
    text_offsets: list[int]  # characters of `text` delivered once token i was
    logprobs: list[Any] | None
    num_cached_tokens: int
    choices: list[int] | None = None  # which of the job's outputs token i belongs to; None where there is but one
    finish_reasons: list[str | None] | None = None  # of each of them; None of one that was cut short
    prompt_logprobs: list[Any] | None = None  # of the prompt's tokens from the second on
    embedding: list[float] | None = None  # what an embedding job gives
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True)
class Ending:
    """The end of a job that no worker ends: its row, which the caller has locked, and what its stream has of it."""

    job: Job
    status: Status
    tokens: Sequence[Token]
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True)
class Expired:
    """A queued job that `expire_due` ended. `unqueue` is its message, to be removed after the commit."""

    job_id: UUID
    num_tokens: int
    unqueue: Ready | None


# Any number of ends in one round trip. What was kept of an earlier attempt gives way, or goes where none is written.
FINISH = text(f"""
    WITH given AS (
        SELECT * FROM jsonb_to_recordset(:ends) AS given(
            id uuid, attempt int, worker_id uuid, status text, num_output_tokens int, num_cached_tokens int,
            finish_reason text, error_code text, error_message text, has_output boolean, {outputs.RECORD}
        )
    ), ended AS (
        UPDATE jobs SET
            status = given.status,
            ended_at = clock_timestamp(),
            num_output_tokens = given.num_output_tokens,
            num_cached_tokens = given.num_cached_tokens,
            finish_reason = given.finish_reason,
            error_code = given.error_code,
            error_message = given.error_message
        FROM given
        WHERE jobs.id = given.id AND jobs.id = ANY(CAST(:job_id AS uuid[]))
          AND jobs.status = 'running' AND jobs.attempt = given.attempt AND jobs.worker_id = given.worker_id
        RETURNING jobs.*
    ), output AS (
        INSERT INTO job_outputs (job_id, {outputs.NAMES})
        SELECT id, {outputs.NAMES} FROM given JOIN ended USING (id, attempt) WHERE has_output
        ON CONFLICT (job_id) DO UPDATE SET {outputs.REPLACED}
    ), dropped AS (
        DELETE FROM job_outputs USING given JOIN ended USING (id, attempt)
        WHERE job_id = id AND job_id = ANY(CAST(:job_id AS uuid[])) AND attempt > 1 AND NOT has_output
    ), {EVENTS}
    SELECT id FROM ended
""").bindparams(bindparam("ends", type_=JSONB))
AS_GIVEN = ("attempt", "status", "num_cached_tokens", "finish_reason", "error_code")


def finish(session: Session, ends: Sequence[End]) -> set[UUID]:
    """End running jobs; returns those that were still the attempt's and the worker's. The others have moved on."""
    if not ends:
        return set()
    job_ids = [end.job_id for end in ends]
    rows = [_row(end) for end in ends]
    return set(session.scalars(FINISH, {"ends": rows, "job_id": job_ids, "event_ids": event_ids(job_ids)}))


def _row(end: End) -> dict[str, Any]:
    return {
        **{name: getattr(end, name) for name in (*AS_GIVEN, *outputs.COLUMNS)},
        "id": str(end.job_id),
        "worker_id": str(end.worker_id),
        "num_output_tokens": len(end.token_ids),
        "error_message": end.error_message and storable(end.error_message),
        "has_output": _has_output(end),
        "text": storable(end.text),
    }


def _has_output(end: End) -> bool:
    return bool(end.token_ids) or end.status == Status.SUCCEEDED


def finished(session: Session, ends: Sequence[End]) -> set[UUID]:
    """Those of the ends that the rows have already: for a worker whose `finish` was committed but never answered."""
    columns = (Job.id, Job.attempt, Job.worker_id, Job.status, Job.num_output_tokens)
    rows = session.execute(select(*columns).where(Job.id.in_([end.job_id for end in ends])))
    there = {tuple(row) for row in rows}
    return {
        end.job_id for end in ends if (end.job_id, end.attempt, end.worker_id, end.status, len(end.token_ids)) in there
    }


async def end_now(
    session: AsyncSession,
    job_id: UUID,
    *,
    status: Status,
    read_tokens: Callable[[Job], Awaitable[Sequence[Token] | None]],
) -> Job | None:
    """End a queued or running job without its worker, with the stream's tokens; None when it was not ended.

    `read_tokens` (`db.stream.fence_async`) is called when the row is locked: no worker can take the job, or end it,
    between what was read and what is written. Its None says that the tokens cannot be told now, and nothing is changed.
    """
    locked = select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    job: Job | None = await session.scalar(locked)
    if job is None or job.status in ENDED:
        return None
    tokens = await read_tokens(job)
    if tokens is None:
        return None
    await session.run_sync(end_locked, [Ending(job, status, tokens)])
    return job


def no_tokens(job_id: UUID) -> Sequence[Token]:
    """What a job without a stream has delivered."""
    return ()


def due(session: Session, *, has_run: bool, after: UUID | None, limit: int) -> list[UUID]:
    """The first `limit` jobs from after the job `after` on that `expire_due` would end, by id.

    `has_run` chooses between those that may have delivered tokens and those that cannot have.
    """
    statement = DUE_RUN if has_run else DUE_NEW
    return list(session.scalars(statement, {"after": after or UUID(int=0), "limit": limit}))


def expire_due(
    session: Session, job_ids: Sequence[UUID], *, read_tokens: Callable[[UUID], Sequence[Token]] = no_tokens
) -> list[Expired]:
    """End those of the jobs that are queued and past one of their limits, or that somebody wants cancelled.

    `read_tokens` gives what a job that ran before has delivered (`db.stream.fence`).
    """
    jobs = session.scalars(
        select(Job).from_statement(LOCK_DUE), {"ids": list(job_ids)}, execution_options={"populate_existing": True}
    ).all()
    now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    endings = [_ending(job, read_tokens(job.id) if job.attempt > 0 else (), now) for job in jobs]
    end_locked(session, endings)
    return [
        Expired(job.id, job.num_output_tokens or 0, None if job.ready_at is None else Ready.of(job)) for job in jobs
    ]


IS_DUE = """
    status = 'queued'
    AND num_nonnulls(start_by, finish_by, run_for, cancel_requested_at) > 0 -- the index `jobs_limited`
    AND (cancel_requested_at IS NOT NULL
         OR (started_at IS NULL AND start_by <= clock_timestamp())
         OR finish_by <= clock_timestamp()
         OR started_at + run_for * interval '1 second' <= clock_timestamp())
"""
DUE_IDS = f"SELECT id FROM jobs WHERE {IS_DUE} AND id > :after"
DUE_NEW = text(f"{DUE_IDS} AND attempt = 0 ORDER BY id LIMIT :limit")
DUE_RUN = text(f"{DUE_IDS} AND attempt > 0 ORDER BY id LIMIT :limit")
LOCK_DUE = text(f"""
    SELECT * FROM jobs WHERE id = ANY(CAST(:ids AS uuid[])) AND {IS_DUE} ORDER BY id FOR UPDATE SKIP LOCKED
""")


def _ending(job: Job, tokens: Sequence[Token], now: datetime) -> Ending:
    if job.cancel_requested_at is not None:
        return Ending(job, Status.CANCELLED, tokens)
    limit_name, message = _passed_limit(job, now)
    return Ending(job, Status.EXPIRED, tokens, limit_name, message)


def _passed_limit(job: Job, now: datetime) -> tuple[str, str]:
    if job.started_at is None and job.start_by is not None and job.start_by <= now:
        return "start_by_passed", f"the job had not started by {job.start_by.isoformat()}"
    if job.finish_by is not None and job.finish_by <= now:
        return "finish_by_passed", f"the job had not finished by {job.finish_by.isoformat()}"
    return "run_for_passed", f"the job had not finished {job.run_for:g} s after it started"


def end_locked(session: Session, endings: Sequence[Ending]) -> None:
    """End rows that the caller has locked and found queued or running, with all that was delivered of them."""
    if not endings:
        return
    now = session.execute(select(func.clock_timestamp())).scalar_one()
    kept = outputs.kept(session, [ending.job.id for ending in endings if ending.job.attempt > 0])
    delivered = {ending.job.id: outputs.longer(ending.tokens, kept.get(ending.job.id, ())) for ending in endings}
    for ending in endings:
        job = ending.job
        job.status, job.ended_at, job.num_output_tokens = ending.status, now, len(delivered[job.id])
        job.error_code, job.error_message = ending.error_code, ending.error_message
    session.flush()
    outputs.write(session, [outputs.row_of(job_id, tokens) for job_id, tokens in delivered.items() if tokens])
    write_events(session, [ending.job.id for ending in endings])
