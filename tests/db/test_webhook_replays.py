"""Replays: which deliveries become due again, and which are made."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs, webhook_replays, webhooks
from db.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from db.webhooks import Attempt
from tests.db.rows import add_endpoint, add_job, end_of, in_seconds, now

ME = UUID(int=11)


def add_event(session: Session) -> UUID:
    job = add_job(session)
    jobs.claim(session, ME, [job.id])
    jobs.finish(session, [end_of(job.id, ME)])
    return session.scalars(select(WebhookEvent.id).where(WebhookEvent.job_id == job.id)).one()


def attempt(session: Session, outcome: Any, *, retry_in: float | None = None) -> None:
    """Lease what is due, and have all of it end so."""
    for due in webhooks.lease_due(session, limit=10, lease_seconds=60.0):
        said = Attempt(in_seconds(0), 1, 200 if outcome == "delivered" else 500, None, None)
        webhooks.record_attempt(session, due.delivery_id, said, outcome=outcome, retry_in_seconds=retry_in)


def deliveries(session: Session) -> list[tuple[UUID, str, int]]:
    """Endpoint, status and attempts since the last replay, of each."""
    session.expire_all()
    rows = session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.id))
    return [(row.endpoint_id, row.status, row.num_attempts - row.num_before_replay) for row in rows]


class Replaying:
    """The asynchronous functions under test, called from synchronous tests of one session."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def replay(self, *event_ids: UUID, endpoint_id: UUID | None = None, **options: bool) -> int:
        return await webhook_replays.replay(self.session, list(event_ids), endpoint_id=endpoint_id, **options)

    async def run(self, act: Any, *args: Any) -> Any:
        return await self.session.run_sync(act, *args)


@pytest.fixture
async def world(async_engine: AsyncEngine) -> Any:
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        yield Replaying(session)


async def test_delivery_that_failed_for_good_is_due_again_with_a_fresh_schedule(world: Replaying) -> None:
    endpoint_id = await world.run(lambda s: add_endpoint(s, url="https://a.test/").id)
    event_id = await world.run(add_event)
    await world.run(attempt, "failed")
    assert await world.replay(event_id) == 1
    assert await world.run(deliveries) == [(endpoint_id, "pending", 0)]
    [due] = await world.run(lambda s: webhooks.lease_due(s, limit=9, lease_seconds=60.0))
    assert (due.event_id, due.num_attempts) == (event_id, 0)


async def test_delivery_that_waits_for_its_next_attempt_is_due_now(world: Replaying) -> None:
    await world.run(lambda s: add_endpoint(s, url="https://a.test/"))
    event_id = await world.run(add_event)

    def wait(session: Session) -> None:
        [due] = webhooks.lease_due(session, limit=9, lease_seconds=60.0)
        failed = Attempt(in_seconds(0), 1, 500, "answered 500", None)
        webhooks.record_attempt(session, due.delivery_id, failed, outcome="retry", retry_in_seconds=3600.0)

    await world.run(wait)
    assert await world.replay(event_id) == 1
    assert len(await world.run(lambda s: webhooks.lease_due(s, limit=9, lease_seconds=60.0))) == 1


async def test_delivery_that_is_being_sent_is_left_to_its_sender(world: Replaying) -> None:
    await world.run(lambda s: add_endpoint(s, url="https://a.test/"))
    event_id = await world.run(add_event)
    await world.run(lambda s: webhooks.lease_due(s, limit=9, lease_seconds=60.0))
    assert await world.replay(event_id) == 0
    assert await world.run(lambda s: webhooks.lease_due(s, limit=9, lease_seconds=60.0)) == []


async def test_only_what_has_not_arrived_is_replayed_where_that_is_asked(world: Replaying) -> None:
    await world.run(lambda s: add_endpoint(s, url="https://a.test/"))
    arrived = await world.run(add_event)
    await world.run(attempt, "delivered")
    failed = await world.run(add_event)
    await world.run(attempt, "failed")
    assert await world.replay(arrived, failed, undelivered=True) == 1
    assert await world.replay(arrived, failed) == 2


async def test_endpoint_that_was_disabled_gets_what_it_missed_and_a_later_one_only_when_it_is_named(
    world: Replaying,
) -> None:
    def add_two(session: Session) -> tuple[UUID, UUID, UUID, UUID]:
        missed = add_endpoint(session, url="https://a.test/", disabled_at=func.now())
        other = add_endpoint(session, url="https://b.test/", event_types=["response.completed"])
        event_id = add_event(session)
        session.execute(update(WebhookEndpoint).values(disabled_at=None))
        return missed.id, other.id, event_id, add_endpoint(session, url="https://c.test/").id

    missed, other, event_id, later = await world.run(add_two)
    assert await world.replay(event_id) == 1
    assert await world.run(deliveries) == [(missed, "pending", 0)]
    assert await world.replay(event_id, endpoint_id=later) == 1
    assert await world.replay(event_id, endpoint_id=other) == 0
    assert await world.replay(event_id, endpoint_id=other, any_type=True) == 1
    assert {endpoint_id for endpoint_id, _, _ in await world.run(deliveries)} == {missed, later, other}


async def test_disabled_endpoint_is_replayed_nothing(world: Replaying) -> None:
    await world.run(lambda s: add_endpoint(s, url="https://a.test/"))
    event_id = await world.run(add_event)
    await world.run(attempt, "failed")
    await world.run(lambda s: s.execute(update(WebhookEndpoint).values(disabled_at=func.now())))
    assert await world.replay(event_id) == 0


async def test_events_of_a_time_are_paged_by_their_own_time_and_tests_are_left_out(world: Replaying) -> None:
    def add_three(session: Session) -> list[UUID]:
        ids = [add_event(session) for _ in range(3)]
        for place, event_id in enumerate(ids):
            moment = now(session) - timedelta(minutes=3 - place)
            session.execute(update(WebhookEvent).where(WebhookEvent.id == event_id).values(created_at=moment))
        return ids

    first, second, third = await world.run(add_three)
    endpoint = await world.run(lambda s: add_endpoint(s, url="https://a.test/"))
    await webhook_replays.add_test(world.session, endpoint, "response.completed")
    hour = {"since": in_seconds(-3600), "until": in_seconds(3600)}

    async def ids(**options: Any) -> list[UUID]:
        return await webhook_replays.ids_between(world.session, "t", **{"after": None, "limit": 10} | hour | options)

    assert await ids() == [first, second, third]
    assert await ids(limit=2) == [first, second]
    assert await ids(after=first) == [second, third]
    assert await ids(since=in_seconds(-150), until=in_seconds(-90)) == [second]
    assert await webhook_replays.ids_between(world.session, "other", **hour, after=None, limit=9) == []
