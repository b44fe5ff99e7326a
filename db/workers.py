"""Engine workers' rows: each one's lease, and the card of the model it serves. The Postgres clock judges leases."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select, text, union, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db.models import Job, Worker

LIVE = ("loading", "ready", "draining")


class WorkerGone(Exception):
    """Somebody judged this worker lost, and its jobs are others' now: it must start anew under another id."""


def register(session: Session, worker: Worker) -> None:
    """Insert a worker that starts, before it loads its model: submits are checked against its card from now on."""
    session.add(worker)
    session.flush()


def renew(session: Session, worker_id: UUID, status: str, stats: dict[str, Any] | None = None) -> float:
    """Extend the lease and say how the worker is, and its engine; returns the Postgres clock (Unix seconds).

    Raises WorkerGone.
    """
    now = session.scalar(
        update(Worker)
        .where(Worker.id == worker_id, Worker.status.in_(LIVE))
        .values(status=status, stats=stats, renewed_at=func.clock_timestamp())
        .returning(func.extract("epoch", Worker.renewed_at))
    )
    if now is None:
        raise WorkerGone(f"worker {worker_id} was declared lost")
    return float(now)


def is_gone(session: Session, worker_id: UUID) -> bool:
    """Whether the worker was declared lost, so that it can claim nothing under this id."""
    status = session.scalar(select(Worker.status).where(Worker.id == worker_id))
    return status not in LIVE


def stop(session: Session, worker_id: UUID) -> None:
    """Say that the worker has ended; it must have handed its jobs back."""
    session.execute(update(Worker).where(Worker.id == worker_id, Worker.status.in_(LIVE)).values(status="stopped"))


def num_live(session: Session, model: str, lease_seconds: float) -> int:
    """How many workers with a live lease share the model's queue: those that are ready, not loading or draining."""
    statement = select(func.count()).where(Worker.model == model, Worker.status == "ready", _has_lease(lease_seconds))
    return session.execute(statement).scalar_one()


def lost(session: Session, lease_seconds: float) -> list[UUID]:
    """Mark workers whose lease ran out as lost. Returns every worker that has running jobs and no live lease."""
    session.execute(
        update(Worker)
        .where(Worker.status.in_(LIVE), ~_has_lease(lease_seconds))
        .values(status="lost")
        .execution_options(synchronize_session=False)
    )
    alive = select(Worker.id).where(Worker.status.in_(LIVE))
    owners = select(Job.worker_id).where(Job.status == text("'running'"), Job.worker_id.not_in(alive)).distinct()
    return [worker_id for worker_id in session.scalars(owners) if worker_id is not None]


def in_use(session: Session, worker_ids: Collection[UUID]) -> set[UUID]:
    """Those of the workers that have not ended, or that have running jobs: of the others nothing will be taken back."""
    unended = select(Worker.id).where(Worker.id.in_(worker_ids), Worker.status.in_(LIVE))
    owners = select(Job.worker_id).where(Job.worker_id.in_(worker_ids), Job.status == text("'running'"))
    found: Iterable[UUID] = session.scalars(union(unended, owners))
    return set(found)


def mark_lost(session: Session, worker_ids: Sequence[UUID]) -> None:
    """End the leases of workers whose processes are known to be gone: a successor on their host saw it."""
    session.execute(update(Worker).where(Worker.id.in_(worker_ids), Worker.status.in_(LIVE)).values(status="lost"))


def predecessors(session: Session, host: str) -> list[Worker]:
    """The workers that claim to live on this host (and boot, and pid namespace): whoever knows their pids can tell."""
    return list(session.scalars(select(Worker).where(Worker.host == host, Worker.status.in_(LIVE))))


def served_models(session: Session) -> list[str]:
    """The name of every model ever served: whose lists may hold messages, and whose jobs may wait."""
    return list(session.scalars(select(Worker.model).distinct().order_by(Worker.model)))


async def live(session: AsyncSession, lease_seconds: float) -> list[Worker]:
    """The workers with a live lease, in whatever state."""
    statement = select(Worker).where(Worker.status.in_(LIVE), _has_lease(lease_seconds)).order_by(Worker.id)
    return list(await session.scalars(statement))


async def card(session: AsyncSession, model: str) -> Worker | None:
    """The newest worker that served `model`, live or not; None when none ever did."""
    newest: Worker | None = await session.scalar(_newest().where(Worker.model == model))
    return newest


async def models(session: AsyncSession) -> list[Worker]:
    """For every model ever served, its newest worker."""
    return list(await session.scalars(_newest()))


def _newest() -> Select[tuple[Worker]]:
    return select(Worker).distinct(Worker.model).order_by(Worker.model, Worker.started_at.desc())


def _has_lease(lease_seconds: float) -> ColumnElement[bool]:
    return Worker.renewed_at > func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, lease_seconds)
