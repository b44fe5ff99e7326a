"""The life of a job: submitted, made ready, cancelled, deleted.

With `db/leases.py` (queued to running and back) and `db/ends.py` (to an end) this is everything that changes a job's
status, each time by a guarded statement that says which states it may leave. Callers find all of it here. Nothing here
knows Redis: a caller commits first and then publishes the `Ready` it was given.

    queued -> running -> succeeded | failed | cancelled | expired | dead
    running -> queued   (worker lost, drained, released)
    queued -> cancelled | expired
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db.ends import End, Ending, Expired, due, end_locked, end_now, expire_due, finish, finished, no_tokens
from db.leases import Claimed, Held, Lost, claim, held, num_crashes, release, requeue_lost, running_of
from db.models import ENDED, IdempotencyKey, Job, JobInput, JobOutput, Status
from db.queue import Ready
from db.submits import Created, IdempotencyMismatch, NewJob, create, create_many

__all__ = [
    "CancelResult",
    "Claimed",
    "Created",
    "End",
    "Expired",
    "Held",
    "IdempotencyMismatch",
    "JobNotEnded",
    "Lost",
    "NewJob",
    "Ready",
    "claim",
    "create",
    "create_many",
    "delete",
    "due",
    "end_now",
    "expire_due",
    "finish",
    "finished",
    "held",
    "no_tokens",
    "num_crashes",
    "num_ready",
    "promote",
    "release",
    "request_cancel",
    "requeue_lost",
    "running_of",
    "unqueued",
]


class JobNotEnded(Exception):
    """Only a job that has ended can be deleted."""


@dataclass(frozen=True)
class CancelResult:
    """The job after a cancel. Not `ended`: tell `worker_id`, wait a little, then `end_now` with the stream's tokens.

    `unqueue` is the message of a job that this cancel ended, to be removed after the commit.
    """

    job: Job
    ended: bool
    worker_id: UUID | None
    unqueue: Ready | None = None


# For each key, model and tier with parked jobs: the oldest move up, as many as its window has room for. The rows get
# distinct times, so that the list keeps their order. Two of these at once may overshoot the window by a few.
PROMOTE = text("""
    WITH RECURSIVE keys AS (
        SELECT unnest(CAST(:key_ids AS uuid[])) AS key_id
        UNION
        SELECT key_id FROM jobs
        WHERE CAST(:key_ids AS uuid[]) IS NULL AND status = 'queued' AND ready_at IS NULL
    ), parked AS (
        -- From one model and tier of a key to its next by the index, however many jobs wait in each.
        SELECT first.* FROM keys, LATERAL (
            SELECT key_id, model, tier FROM jobs
            WHERE jobs.key_id = keys.key_id AND status = 'queued' AND ready_at IS NULL
            ORDER BY model, tier LIMIT 1
        ) AS first
        UNION ALL
        SELECT next.* FROM parked, LATERAL (
            SELECT key_id, model, tier FROM jobs
            WHERE jobs.key_id = parked.key_id AND (jobs.model, jobs.tier) > (parked.model, parked.tier)
              AND status = 'queued' AND ready_at IS NULL
            ORDER BY model, tier LIMIT 1
        ) AS next
    ), chosen AS (
        SELECT oldest.id FROM parked, LATERAL (
            SELECT id FROM jobs j
            WHERE j.key_id = parked.key_id AND j.model = parked.model AND j.tier = parked.tier
              AND j.status = 'queued' AND j.ready_at IS NULL
            ORDER BY j.id
            LIMIT (
                SELECT greatest(0, :key_window - count(*)) FROM (
                    SELECT 1 FROM jobs r
                    WHERE r.key_id = parked.key_id AND r.model = parked.model AND r.tier = parked.tier
                      AND r.status = 'queued' AND r.ready_at IS NOT NULL
                    LIMIT :key_window
                ) AS ready
            )
            FOR UPDATE SKIP LOCKED
        ) AS oldest
    ), ordered AS (
        SELECT id, row_number() OVER (ORDER BY id) AS place, clock_timestamp() AS now FROM chosen
    )
    UPDATE jobs SET ready_at = (SELECT min(now) FROM ordered) + ordered.place * interval '1 microsecond'
    FROM ordered WHERE jobs.id = ordered.id AND jobs.status = 'queued' AND jobs.ready_at IS NULL
    RETURNING jobs.id, jobs.model, jobs.tier, jobs.ready_at, jobs.num_blocks
""")


def promote(session: Session, key_ids: Collection[UUID] | None, *, key_window: int) -> list[Ready]:
    """Make parked jobs ready while their key's window allows, oldest first; those of all keys for None.

    What is returned is to be published after the commit.
    """
    rows = session.execute(
        PROMOTE, {"key_ids": None if key_ids is None else list(key_ids), "key_window": key_window}
    ).all()
    return sorted((Ready.of(row) for row in rows), key=lambda ready: ready.ready_at)


def unqueued(session: Session, model: str, tier: int, *, older_than: float | None, limit: int) -> list[Ready]:
    """Ready jobs older than `older_than` (Unix seconds; the list's head), or any for None: they have no message.

    Returns the newest `limit` of them, oldest first. Pages pushed to the front one after the other, each older than the
    one before, leave the list in order.
    """
    statement = (
        select(Job.id, Job.model, Job.tier, Job.ready_at, Job.num_blocks)
        .where(Job.model == model, Job.tier == tier, Job.status == text("'queued'"), Job.ready_at.is_not(None))
        .order_by(Job.ready_at.desc(), Job.id.desc())
        .limit(limit)
    )
    if older_than is not None:
        statement = statement.where(Job.ready_at < func.to_timestamp(older_than))
    return [Ready.of(row) for row in reversed(session.execute(statement).all())]


def num_ready(session: Session, model: str) -> dict[int, int]:
    """How many queued jobs of the model may start, by tier: as many messages as it should have."""
    statement = (
        select(Job.tier, func.count())
        .where(Job.model == model, Job.status == text("'queued'"), Job.ready_at.is_not(None))
        .group_by(Job.tier)
    )
    return {row.tier: row[1] for row in session.execute(statement)}


async def request_cancel(session: AsyncSession, tenant: str, job_id: UUID) -> CancelResult | None:
    """Cancel a job: at once when it never ran, else by a mark its worker obeys. None: the tenant has no such job.

    An ended job is returned unchanged. The mark also keeps a job that is handed back from being claimed again.
    """
    job = await session.scalar(
        select(Job)
        .where(Job.id == job_id, Job.tenant == tenant)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if job is None or job.status in ENDED:
        return None if job is None else CancelResult(job, ended=True, worker_id=None)
    if job.status == Status.QUEUED and job.attempt == 0:
        await session.run_sync(end_locked, [Ending(job, Status.CANCELLED, tokens=())])
        unqueue = None if job.ready_at is None else Ready.of(job)
        return CancelResult(job, ended=True, worker_id=None, unqueue=unqueue)
    if job.cancel_requested_at is None:
        job.cancel_requested_at = await session.scalar(select(func.clock_timestamp()))
        await session.flush()
    return CancelResult(job, ended=False, worker_id=job.worker_id)


async def delete(session: AsyncSession, tenant: str, job_id: UUID) -> bool:
    """Delete an ended job and its bodies; False when the tenant has no such job. Raises JobNotEnded."""
    status = await session.scalar(select(Job.status).where(Job.id == job_id, Job.tenant == tenant).with_for_update())
    if status is None:
        return False
    if status not in ENDED:
        raise JobNotEnded(f"the job is {status}; cancel it first")
    await session.execute(delete_from(JobOutput).where(JobOutput.job_id == job_id))
    await session.execute(delete_from(JobInput).where(JobInput.job_id == job_id))
    await session.execute(delete_from(IdempotencyKey).where(IdempotencyKey.job_id == job_id))
    await session.execute(delete_from(Job).where(Job.id == job_id))
    return True
