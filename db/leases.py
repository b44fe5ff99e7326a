"""Jobs in the hands of workers: claimed, held, handed back, taken from a worker that was lost.

The fence is (attempt, worker_id); the clock never is. A worker's own lease is a row in `workers`, see `db/workers.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from db import outputs
from db.ends import Ending, end_locked, no_tokens
from db.models import Job, Status, Worker
from db.queue import Ready
from db.sampling import Sampling
from db.stream import Standing, Token

MAX_CRASHES = 3


@dataclass(frozen=True)
class Claimed:
    """A job that is now this worker's, with all that running it needs."""

    id: UUID
    attempt: int
    crashes: int
    tenant: str
    key_id: UUID
    model: str
    tier: int
    stream: bool
    seed: int
    max_tokens: int
    num_blocks: int
    prompt_token_ids: list[int]
    sampling: Sampling
    ready_at: float  # Unix seconds, Postgres clock
    seconds_left: float | None  # to the nearer of finish_by and the end of run_for
    limit_code: str | None  # of that limit: finish_by_passed | run_for_passed
    kind: str = "job"  # an `embedding` is computed as such, all others as text
    has_parked: bool = False  # jobs of its key are parked: one may take its place in the window
    kept_tokens: list[Token] = field(default_factory=list)  # delivered by earlier attempts, should the stream be lost


@dataclass(frozen=True)
class Held:
    """A running row of a worker, as Postgres has it."""

    job_id: UUID
    attempt: int
    is_cancelled: bool


@dataclass(frozen=True)
class Lost:
    """What became of lost workers' jobs: `ready` again, to publish after the commit, or `dead`, with so many tokens."""

    ready: list[Ready]
    dead: dict[UUID, int]


# What may be claimed. A row that somebody else took, or whose time is over, is not: its message is to be dropped.
CLAIMABLE = """
    jobs.id = ANY(CAST(:job_ids AS uuid[])) AND status = 'queued'
    AND ready_at IS NOT NULL AND cancel_requested_at IS NULL
    AND (start_by IS NULL OR start_by > clock_timestamp() OR started_at IS NOT NULL)
    AND (finish_by IS NULL OR finish_by > clock_timestamp())
    AND (run_for IS NULL OR started_at IS NULL OR started_at + run_for * interval '1 second' > clock_timestamp())
"""

# A crashed job is taken by itself: whether it crashes again is to be seen without others beside it that begin, too.
CLAIM = text(f"""
    WITH first_crashed AS (
        SELECT id FROM jobs
        WHERE {CLAIMABLE} AND crashes > 0 AND :may_take_crashed
        ORDER BY array_position(CAST(:job_ids AS uuid[]), id)
        LIMIT 1
    ), picked AS (
        SELECT id FROM jobs
        WHERE {CLAIMABLE}
          AND CASE WHEN EXISTS (SELECT 1 FROM first_crashed) THEN id IN (SELECT id FROM first_crashed)
                   ELSE crashes = 0 END
          AND NOT EXISTS (SELECT 1 FROM workers WHERE id = :worker_id AND status IN ('lost', 'stopped'))
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs SET
        status = 'running',
        attempt = attempt + 1,
        worker_id = :worker_id,
        started_at = coalesce(started_at, (SELECT clock_timestamp())) -- one moment for all of them
    FROM picked JOIN job_inputs ON job_inputs.job_id = picked.id
    WHERE jobs.id = picked.id
      AND jobs.id = ANY(CAST(:job_ids AS uuid[])) AND job_inputs.job_id = ANY(CAST(:job_ids AS uuid[]))
    RETURNING jobs.id, attempt, crashes, tenant, key_id, kind, model, tier, stream, seed, max_tokens, num_blocks,
        prompt_token_ids, sampling, extract(epoch FROM ready_at)::float8 AS ready_at,
        extract(epoch FROM least(finish_by, started_at + run_for * interval '1 second')
                - clock_timestamp())::float8 AS seconds_left,
        CASE WHEN finish_by IS NULL AND run_for IS NULL THEN NULL
             WHEN run_for IS NULL OR finish_by <= started_at + run_for * interval '1 second' THEN 'finish_by_passed'
             ELSE 'run_for_passed' END AS limit_code,
        EXISTS (
            SELECT 1 FROM jobs AS parked
            WHERE parked.key_id = jobs.key_id AND parked.status = 'queued' AND parked.ready_at IS NULL
        ) AS has_parked
""")


LEFT = text(f"SELECT id, crashes FROM jobs WHERE {CLAIMABLE}")


def claim(
    session: Session, worker_id: UUID, job_ids: Sequence[UUID], *, may_take_crashed: bool = True
) -> list[Claimed]:
    """Take those of the jobs that are still queued, as their next attempt; the oldest id first.

    The first of those that have crashed is taken alone, and none unless `may_take_crashed`.
    """
    if not job_ids:
        return []
    parameters = {"worker_id": worker_id, "job_ids": list(job_ids), "may_take_crashed": may_take_crashed}
    rows = session.execute(CLAIM, parameters).mappings()
    claimed = [Claimed(**{**row, "sampling": Sampling.model_validate(row["sampling"])}) for row in rows]
    kept = outputs.kept(session, [job.id for job in claimed if job.attempt > 1])
    return sorted((replace(job, kept_tokens=kept.get(job.id, [])) for job in claimed), key=lambda job: job.id)


def num_crashes(session: Session, job_ids: Collection[UUID]) -> dict[UUID, int]:
    """How often the jobs that a claim left in the queue have crashed: their messages are still of use."""
    rows = session.execute(LEFT, {"job_ids": list(job_ids)})
    return {row.id: row.crashes for row in rows}


def held(session: Session, worker_id: UUID) -> list[Held]:
    """The worker's running rows: what it must be computing, and what a client wants cancelled."""
    rows = session.execute(
        select(Job.id, Job.attempt, Job.cancel_requested_at.is_not(None)).where(
            Job.worker_id == worker_id, Job.status == text("'running'")
        )
    )
    return [Held(job_id, attempt, is_cancelled) for job_id, attempt, is_cancelled in rows]


NOTHING: Mapping[UUID, Sequence[Token]] = {}
# Where nothing was delivered the job has not started: `start_by` counts again, and `run_for` not yet.
RELEASE = text("""
    UPDATE jobs SET
        status = 'queued',
        worker_id = NULL,
        started_at = CASE WHEN jobs.id = ANY(CAST(:delivered AS uuid[])) THEN started_at END
    FROM unnest(CAST(:job_ids AS uuid[]), CAST(:attempts AS int[])) AS held(id, attempt)
    WHERE jobs.id = held.id AND jobs.id = ANY(CAST(:job_ids AS uuid[]))
      AND jobs.status = 'running' AND jobs.attempt = held.attempt AND jobs.worker_id = :worker_id
    RETURNING jobs.id, jobs.model, jobs.tier, jobs.ready_at, jobs.num_blocks
""")


def release(
    session: Session,
    worker_id: UUID,
    held: Sequence[tuple[UUID, int]],
    *,
    delivered: Mapping[UUID, Sequence[Token]] = NOTHING,
) -> list[Ready]:
    """Hand running (job, attempt) pairs back, uncharged and with their place; returns what to push to the front.

    `delivered` are those that have delivered tokens, or may have, and those that are known: such a job stays started.
    """
    if not held:
        return []
    job_ids, attempts = (list(column) for column in zip(*held, strict=True))
    parameters = {"job_ids": job_ids, "attempts": attempts, "worker_id": worker_id, "delivered": list(delivered)}
    rows = session.execute(RELEASE, parameters).all()
    outputs.keep(session, {row.id: delivered[row.id] for row in rows if row.id in delivered})
    return sorted((Ready.of(row) for row in rows), key=lambda ready: ready.ready_at)


def running_of(session: Session, worker_ids: Collection[UUID]) -> list[UUID]:
    """The running jobs of these workers: whose streams to look at before `requeue_lost`."""
    statement = select(Job.id).where(Job.worker_id.in_(worker_ids), Job.status == text("'running'"))
    return list(session.scalars(statement))


Journals = Mapping[tuple[UUID, int], Sequence[Token]]  # what workers noted of (job, attempt) before it was told


def no_journals(worker_ids: Collection[UUID]) -> Journals:
    """What the journals of workers of another host have."""
    return {}


def requeue_lost(
    session: Session,
    worker_ids: Collection[UUID],
    standings: Mapping[UUID, Standing],
    *,
    read_tokens: Callable[[UUID], Sequence[Token]] = no_tokens,
    read_journals: Callable[[Collection[UUID]], Journals] = no_journals,
) -> Lost:
    """Take lost workers' jobs away from them: back to the queue, or dead after three crashes.

    A lost lease is a crash when the job was computed and there is no token more of it (`standings` of its stream, or
    the journal) than at the loss before. A job that was only held, or not even that, is not charged: its stream was not
    opened to be computed. What each has delivered (`read_tokens`: `db.stream.fence`, or more where its worker's journal
    can be read) is kept in its row, and is a dead job's output.
    """
    jobs = _lock_running(session, worker_ids)
    owners = {worker.id: worker for worker in session.scalars(select(Worker).where(Worker.id.in_(worker_ids)))}
    num_kept = outputs.num_kept(session, [job.id for job in jobs if job.attempt > 1])
    told = {job.id: read_tokens(job.id) for job in jobs}
    # After the fences, so that nothing is told beyond what the journals have.
    journaled = read_journals({job.worker_id for job in jobs if job.worker_id is not None})
    delivered: dict[UUID, Sequence[Token]] = {}
    ready, dead = [], []
    for job in jobs:
        noted = journaled.get((job.id, job.attempt), ())
        delivered[job.id] = outputs.longer(told[job.id], noted)
        if not delivered[job.id] and not num_kept.get(job.id):
            job.started_at = None  # nothing was delivered, so `start_by` counts again, and `run_for` not yet
        _charge(job, standings.get(job.id), len(noted), owners.get(job.worker_id) if job.worker_id else None)
        if job.crashes >= MAX_CRASHES:
            dead.append(Ending(job, Status.DEAD, delivered.pop(job.id), "crashed", _crash_report(job)))
        else:
            job.status, job.worker_id = Status.QUEUED, None
            ready.append(job)
    session.flush()
    outputs.keep(session, delivered)
    end_locked(session, dead)
    return Lost(
        sorted((Ready.of(job) for job in ready), key=lambda ready: ready.ready_at),
        {ending.job.id: ending.job.num_output_tokens or 0 for ending in dead},
    )


def _lock_running(session: Session, worker_ids: Collection[UUID]) -> Sequence[Job]:
    return session.scalars(
        select(Job)
        .where(Job.worker_id.in_(worker_ids), Job.status == text("'running'"))
        .order_by(Job.id)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).all()


def _charge(job: Job, standing: Standing | None, num_journaled: int, owner: Worker | None) -> None:
    if standing is None:  # nobody knows whether it was computed, but how far it is
        job.tokens_at_crash = max(job.tokens_at_crash, num_journaled)
        return
    num_tokens = max(standing.num_tokens, num_journaled)
    is_computed = standing.attempt >= job.attempt and not standing.is_waiting
    if is_computed and num_tokens <= job.tokens_at_crash:
        crash = {
            "attempt": job.attempt,
            "worker": str(job.worker_id),
            "name": owner and owner.name,  # the worker's own row is gone in a day
            "at": datetime.now(UTC).isoformat(),
            "tokens": num_tokens,
        }
        job.crashes += 1
        job.crash_log = [*(job.crash_log or []), crash]
    job.tokens_at_crash = num_tokens


def _crash_report(job: Job) -> str:
    attempts = ", ".join(f"attempt {crash['attempt']} at token {crash['tokens']}" for crash in job.crash_log or [])
    return f"{job.crashes} workers were lost while they ran this job ({attempts}); it will not be tried again"
