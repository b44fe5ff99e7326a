"""The outbox: one sender at a time, no lane hides another, every attempt on record."""

from uuid import UUID

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs, webhooks
from db.models import WebhookDelivery
from db.webhooks import Attempt, Due
from tests.db.rows import add_endpoint, add_job, end_of, in_seconds, now

ME = UUID(int=11)


def add_due(session: Session, *, url: str, count: int = 1) -> None:
    """Ended jobs whose events go to `url`."""
    for _ in range(count):
        job = add_job(session, webhook_url=url)
        jobs.claim(session, ME, [job.id])
        jobs.finish(session, [end_of(job.id, ME)])


def lease(session: Session, **options: object) -> list[Due]:
    return webhooks.lease_due(session, **{"limit": 10, "lease_seconds": 60.0} | options)


def attempt(status_code: int | None = 200, error: str | None = None) -> Attempt:
    return Attempt(in_seconds(0), 12, status_code, error, "ok")


def test_due_delivery_is_leased_once_with_all_that_sending_needs(session: Session) -> None:
    endpoint = add_endpoint(session)
    add_due(session, url="https://a.test/hook?x=1")
    [due] = lease(session)
    assert (due.url, due.secret, due.num_attempts) == ("https://a.test/hook?x=1", "whsec_c2VjcmV0", 0)
    assert due.body.startswith(b'{"id":"evt_') and due.event_id.hex.encode() in due.body
    assert due.lane == (endpoint.id, "https://a.test")
    assert lease(session) == []


def test_delivery_whose_sender_was_killed_is_due_again_after_its_lease(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://a.test/")
    [first] = lease(session)
    session.execute(update(WebhookDelivery).values(due_at=text("clock_timestamp()")))
    [again] = lease(session)
    assert (again.delivery_id, again.event_id, again.body) == (first.delivery_id, first.event_id, first.body)


def test_two_senders_never_lease_the_same(engine: Engine) -> None:
    with Session(engine) as setup:
        add_endpoint(setup)
        add_due(setup, url="https://a.test/", count=4)
        setup.commit()
    with Session(engine) as one, Session(engine) as two:
        first, second = lease(one, limit=2), lease(two, limit=4)
        assert len(first) == 2
        assert not {due.delivery_id for due in first} & {due.delivery_id for due in second}


def test_lane_with_many_due_leaves_room_for_the_others(session: Session) -> None:
    endpoint = add_endpoint(session)
    add_due(session, url="https://slow.test/a", count=6)
    add_due(session, url="https://fast.test/", count=1)
    leased = lease(session, limit=4, lane_limit=2)
    assert sorted(due.lane[1] for due in leased) == ["https://fast.test", "https://slow.test", "https://slow.test"]
    assert lease(session, lane_limit=2, busy={(endpoint.id, "https://slow.test"): 2}) == []
    assert len(lease(session, lane_limit=3, busy={(endpoint.id, "https://slow.test"): 2})) == 1


async def test_attempts_are_numbered_and_the_delivery_ends_with_the_one_that_succeeds(
    async_engine: AsyncEngine,
) -> None:
    def attempt_three_times(session: Session) -> UUID:
        add_endpoint(session)
        add_due(session, url="https://a.test/")
        [due] = lease(session)
        failed = attempt(None, "connection refused")
        webhooks.record_attempt(session, due.delivery_id, failed, outcome="retry", retry_in_seconds=5.0)
        webhooks.record_attempt(session, due.delivery_id, attempt(), outcome="delivered")
        webhooks.record_attempt(session, due.delivery_id, attempt(500, "500"), outcome="failed")  # a late double
        return due.job_id

    async with AsyncSession(async_engine) as session:
        job_id = await session.run_sync(attempt_three_times)
        [delivery] = await webhooks.deliveries_of(session, job_id)
        await session.refresh(delivery.row)
    assert (delivery.row.status, delivery.row.num_attempts, delivery.row.due_at) == ("delivered", 3, None)
    assert [(each.number, each.status_code) for each in delivery.attempts] == [(1, None), (2, 200), (3, 500)]
    assert delivery.attempts[0].error == "connection refused"


def test_retry_is_due_after_its_delay(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://a.test/")
    [due] = lease(session)
    webhooks.record_attempt(session, due.delivery_id, attempt(503, "503"), outcome="retry", retry_in_seconds=300.0)
    row = session.scalars(select(WebhookDelivery)).one()
    session.refresh(row)
    assert row.status == "pending" and row.due_at is not None
    assert (row.due_at - now(session)).total_seconds() == pytest.approx(300, abs=10)
    assert lease(session) == []


def test_failed_delivery_is_never_due_again(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://a.test/")
    [due] = lease(session)
    webhooks.record_attempt(session, due.delivery_id, attempt(410, "410"), outcome="failed")
    session.execute(update(WebhookDelivery).values(due_at=text("clock_timestamp()")))
    assert lease(session) == []
