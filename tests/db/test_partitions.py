"""Partitions by day: made ahead, filled from the default one, dropped when everything in them is old and ended."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from db import jobs, partitions
from db.ids import new_id
from db.models import IdempotencyKey, Job, JobInput, Status, WebhookEvent
from tests.db.rows import add_job, now, tokens


def partition_of(session: Session, job_id: UUID) -> str:
    return session.execute(
        text("SELECT tableoid::regclass::text FROM jobs WHERE id = :id"), {"id": job_id}
    ).scalar_one()


def id_in_days(session: Session, days: float) -> UUID:
    return new_id((now(session) + timedelta(days=days)).timestamp())


def test_new_jobs_lie_in_the_partition_of_their_day(session: Session) -> None:
    job_id = add_job(session).id
    made_at = datetime.fromtimestamp((job_id.int >> 80) / 1000, UTC)
    assert partition_of(session, job_id) == f"jobs_p{made_at:%Y%m%d}"


def test_partitions_are_made_ahead_once(session: Session) -> None:
    assert partitions.ensure(session) == []
    made = partitions.ensure(session, days_ahead=9)
    assert len(made) == 2 * 3 and all(name[-9] == "p" for name in made)
    assert partitions.ensure(session, days_ahead=9) == []


def test_rows_that_fell_into_the_default_partition_move_to_their_days(session: Session) -> None:
    job = add_job(session, id=id_in_days(session, 9), status=Status.QUEUED)
    assert partition_of(session, job.id) == "jobs_default"
    partitions.ensure(session, days_ahead=9)
    assert partition_of(session, job.id).startswith("jobs_p")
    session.expire_all()
    assert session.get_one(JobInput, job.id).prompt == "abc"


def make_old_day(session: Session, *, days: int) -> UUID:
    """A job made `days` ago, in a partition of that day."""
    start = now(session).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    for table in partitions.TABLES:
        partitions._create(session, partitions.Day(table, start))
    return add_job(session, id=new_id((start + timedelta(hours=1)).timestamp())).id


def test_old_day_is_dropped_when_all_its_jobs_have_ended(session: Session) -> None:
    job_id = make_old_day(session, days=40)
    young = add_job(session)
    assert partitions.drop_expired(session, 30) == []
    jobs.mark_ended(session, job_id, status=Status.CANCELLED, tokens=tokens(1))
    dropped = partitions.drop_expired(session, 30)
    assert [name[:-10] for name in dropped] == ["jobs", "job_inputs", "job_outputs"]
    session.expire_all()
    assert list(session.scalars(select(Job.id))) == [young.id]


def test_day_within_retention_is_kept(session: Session) -> None:
    jobs.mark_ended(session, make_old_day(session, days=29), status=Status.CANCELLED, tokens=())
    assert partitions.drop_expired(session, 30) == []


def test_old_events_and_idempotency_keys_go_too(session: Session) -> None:
    old = id_in_days(session, -40)
    session.add(WebhookEvent(id=old, tenant="t", job_id=old, type="job.succeeded", body=b"{}"))
    created_at = now(session) - timedelta(days=40)
    session.add(IdempotencyKey(tenant="t", key="old", body_digest=b"", job_id=old, created_at=created_at))
    session.add(IdempotencyKey(tenant="t", key="new", body_digest=b"", job_id=old))
    session.flush()
    partitions.drop_expired(session, 30)
    assert session.scalar(select(func.count()).select_from(WebhookEvent)) == 0
    assert list(session.scalars(select(IdempotencyKey.key))) == ["new"]


def test_claims_look_into_the_partitions_of_their_jobs_alone(engine: Engine) -> None:
    with Session(engine) as session:
        job = add_job(session)
        plan = "\n".join(
            session.scalars(
                text("EXPLAIN SELECT id FROM jobs WHERE id = ANY(CAST(:ids AS uuid[])) AND status = 'queued'"),
                {"ids": [job.id]},
            )
        )
    assert plan.count("Scan using") <= 1 and "jobs_default" not in plan
