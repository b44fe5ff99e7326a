"""What goes with age, and what stays however old it is: what has not ended, and a model that jobs wait for."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from db import partitions, retention, workers
from db.ids import new_id
from db.models import IdempotencyKey, Job, JobInput, Status, WebhookAttempt, WebhookDelivery, WebhookEvent, Worker
from db.partitions import Day
from tests.db.rows import add_endpoint, add_job, add_worker, now

KEPT_DAYS = 30


def days_ago(session: Session, days: float) -> datetime:
    return now(session) - timedelta(days=days)


def expiry(session: Session) -> datetime:
    return partitions.today(session) - timedelta(days=KEPT_DAYS)


def make_day(session: Session, days: float) -> datetime:
    """Partitions for the day so long ago; returns its beginning."""
    start = days_ago(session, days).replace(hour=0, minute=0, second=0, microsecond=0)
    for table in partitions.TABLES:
        partitions._create(session, Day(table, start))
    return start


def add_old_job(session: Session, start: datetime, **fields: object) -> UUID:
    """A job made in the first hour of that day."""
    return add_job(session, id=new_id((start + timedelta(hours=1)).timestamp()), **fields).id


def add_ended(session: Session, start: datetime, *, ended_days_ago: float = 39) -> UUID:
    return add_old_job(session, start, status=Status.SUCCEEDED, ended_at=days_ago(session, ended_days_ago))


def delete_all(session: Session, what: str) -> int:
    return retention.delete_batch(session, what, expiry(session))


def count(session: Session, table: type) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0


# Days of jobs


def test_old_day_is_dropped_when_all_its_jobs_have_ended(session: Session) -> None:
    start = make_day(session, 40)
    add_ended(session, start)
    young = add_job(session)
    dropped = retention.drop_day(session, start, expiry(session))
    assert [name[:-10] for name in dropped] == ["jobs", "job_inputs", "job_outputs"]
    session.expire_all()
    assert list(session.scalars(select(Job.id))) == [young.id]


def test_one_job_that_never_ends_does_not_keep_the_texts_of_its_day(session: Session) -> None:
    start = make_day(session, 40)
    for _ in range(3):
        add_ended(session, start)
    waiting = add_old_job(session, start)
    assert retention.drop_day(session, start, expiry(session)) == []
    assert delete_all(session, "jobs") == 3
    assert list(session.scalars(select(Job.id))) == [waiting]
    assert list(session.scalars(select(JobInput.job_id))) == [waiting]


def test_job_that_waited_longer_than_the_retention_is_kept_as_long_as_others_once_it_ended(session: Session) -> None:
    start = make_day(session, 40)
    kept, gone = add_ended(session, start, ended_days_ago=1), add_ended(session, start, ended_days_ago=35)
    assert retention.drop_day(session, start, expiry(session)) == []
    assert delete_all(session, "jobs") == 1
    assert list(session.scalars(select(Job.id))) == [kept] and kept != gone


def test_job_in_the_default_partition_expires_too(session: Session) -> None:
    add_ended(session, days_ago(session, 400), ended_days_ago=399)
    add_job(session, status=Status.SUCCEEDED, ended_at=now(session))
    assert delete_all(session, "jobs") == 1
    assert count(session, Job) == count(session, JobInput) == 1


def test_rows_go_in_batches(session: Session) -> None:
    for _ in range(5):
        add_ended(session, days_ago(session, 400))
    deleted = [retention.delete_batch(session, "jobs", expiry(session), limit=2) for _ in range(3)]
    assert deleted == [2, 2, 1]


def test_day_that_somebody_uses_is_left_and_the_others_go(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    with Session(engine) as session, session.begin():
        busy, idle = make_day(session, 50), make_day(session, 49)
        for _ in range(3):
            add_ended(session, days_ago(session, 400))
    with Session(engine) as reader:
        reader.execute(text(f"SELECT count(*) FROM {Day('jobs', busy).name}"))  # holds it until the transaction ends
        removed = retention.remove_expired(engine, KEPT_DAYS)
    assert [name[-8:] for name in removed.partitions] == [f"{idle:%Y%m%d}"] * 3
    assert removed.num_rows["jobs"] == 3
    assert [name[-8:] for name in retention.remove_expired(engine, KEPT_DAYS).partitions] == [f"{busy:%Y%m%d}"] * 3


def test_kind_of_row_that_cannot_be_deleted_does_not_keep_the_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(retention.ROWS, "jobs", "SELECT 1/0")
    with Session(engine) as session, session.begin():
        old = days_ago(session, 40)
        session.add(IdempotencyKey(tenant="t", key="old", body_digest=b"", job_id=new_id(), created_at=old))
    assert retention.remove_expired(engine, KEPT_DAYS).num_rows["idempotency keys"] == 1


# What hangs off them


def add_event(session: Session, *, days: float, status: str | None) -> UUID:
    """An event so old, with one delivery in this state, or without any."""
    event_id = new_id(days_ago(session, days).timestamp())
    session.add(WebhookEvent(id=event_id, tenant="t", job_id=event_id, type="job.succeeded", body=b"{}"))
    if status is not None:
        where = {"url": "http://x/", "endpoint_id": add_endpoint(session, url="http://x/").id, "host": "http://x"}
        row = WebhookDelivery(id=event_id, event_id=event_id, job_id=event_id, status=status, tenant="t", **where)
        attempt = WebhookAttempt(id=new_id(), delivery_id=event_id, number=1, started_at=now(session), duration_ms=1)
        session.add_all([row, attempt])
    session.flush()
    return event_id


def test_deliveries_that_are_still_to_be_made_are_kept_with_their_events(session: Session) -> None:
    pending = add_event(session, days=40, status="pending")
    for status in ("delivered", "failed", None):
        add_event(session, days=40, status=status)
    young = add_event(session, days=1, status="delivered")
    assert [delete_all(session, what) for what in ("deliveries", "events")] == [2, 3]
    assert set(session.scalars(select(WebhookEvent.id))) == {pending, young}
    assert set(session.scalars(select(WebhookDelivery.id))) == {pending, young}
    assert set(session.scalars(select(WebhookAttempt.delivery_id))) == {pending, young}


def test_old_idempotency_keys_go(session: Session) -> None:
    for key, days in (("old", 40), ("new", 1)):
        created_at = days_ago(session, days)
        session.add(IdempotencyKey(tenant="t", key=key, body_digest=b"", job_id=new_id(), created_at=created_at))
    session.flush()
    assert delete_all(session, "idempotency keys") == 1
    assert list(session.scalars(select(IdempotencyKey.key))) == ["new"]


# Workers


def add_card(session: Session, *, seen_days_ago: float, status: str = "stopped", model: str = "m") -> UUID:
    moment = days_ago(session, seen_days_ago)
    return add_worker(session, status=status, model=model, started_at=moment, renewed_at=moment)


def test_of_the_workers_that_ended_a_model_keeps_its_newest_card(session: Session) -> None:
    for days in (60, 40, 3):
        add_card(session, seen_days_ago=days, status="lost")
    lately, newest = add_card(session, seen_days_ago=0.5), add_card(session, seen_days_ago=0.2)
    assert delete_all(session, "workers") == 3
    assert set(session.scalars(select(Worker.id))) == {lately, newest}


def test_model_last_seen_before_the_retention_is_forgotten_unless_jobs_wait_for_it(session: Session) -> None:
    add_card(session, seen_days_ago=40, model="gone")
    waited_for = add_card(session, seen_days_ago=40, model="waited for")
    lately = add_card(session, seen_days_ago=20, model="lately")
    add_job(session, model="waited for")
    add_job(session, model="gone", status=Status.SUCCEEDED, ended_at=now(session))
    assert delete_all(session, "workers") == 1
    assert set(session.scalars(select(Worker.id))) == {waited_for, lately}
    assert workers.served_models(session) == ["lately", "waited for"]


def test_worker_that_lives_or_has_jobs_to_be_taken_back_keeps_its_row(session: Session) -> None:
    living = add_card(session, seen_days_ago=50, status="ready")
    owner = add_card(session, seen_days_ago=49, status="lost")
    add_job(session, status=Status.RUNNING, attempt=1, worker_id=owner)
    add_card(session, seen_days_ago=48, status="lost")
    newest = add_card(session, seen_days_ago=1)
    assert delete_all(session, "workers") == 1
    assert set(session.scalars(select(Worker.id))) == {living, owner, newest}
