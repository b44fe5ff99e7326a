"""Partitions by day: made ahead, filled from the default one."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from db import partitions
from db.ids import new_id
from db.models import JobInput, Status
from tests.db.rows import add_job, now


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
