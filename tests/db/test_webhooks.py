"""The outbox: one sender at a time, no lane hides another, every attempt on record."""

import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs, webhook_log, webhooks
from db.models import WebhookDelivery, WebhookEvent
from db.webhooks import Attempt, Due
from tests.db.rows import add_endpoint, add_job, end_of, in_seconds, now

ME = UUID(int=11)


def add_due(session: Session, *, url: str, count: int = 1, tenant: str = "t") -> None:
    """Ended jobs whose events go to `url`."""
    for _ in range(count):
        job = add_job(session, webhook_url=url, tenant=tenant)
        jobs.claim(session, ME, [job.id])
        jobs.finish(session, [end_of(job.id, ME)])


def lease(session: Session, **options: object) -> list[Due]:
    return webhooks.lease_due(session, **{"limit": 10, "lease_seconds": 60.0} | options)


def attempt(status_code: int | None = 200, error: str | None = None) -> Attempt:
    return Attempt(in_seconds(0), 12, status_code, error, "ok")


def test_due_delivery_is_leased_once_with_all_that_sending_needs(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://a.test/hook?x=1")
    [due] = lease(session)
    assert (due.url, due.secrets, due.num_attempts) == ("https://a.test/hook?x=1", ["whsec_c2VjcmV0"], 0)
    assert json.loads(due.body)["id"] == f"evt_{due.event_id.hex}"
    assert due.lane == ("t", "a.test")
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
    add_endpoint(session)
    add_due(session, url="https://slow.test/a", count=6)
    add_due(session, url="https://fast.test/", count=1)
    leased = lease(session, limit=4, lane_limit=2)
    assert sorted(due.host for due in leased) == ["fast.test", "slow.test", "slow.test"]
    assert lease(session, lane_limit=2, busy={("t", "slow.test"): 2}) == []
    assert len(lease(session, lane_limit=3, busy={("t", "slow.test"): 2})) == 1


def test_host_is_one_lane_in_every_spelling_and_whatever_endpoint_it_comes_from(session: Session) -> None:
    add_endpoint(session)
    add_endpoint(session, url="http://slow.test/all-events")
    for url in ("http://slow.test?1", "http://u1@slow.test/", "http://SLOW.test/", "http://slow.test:80/"):
        add_due(session, url=url)
    assert {due.lane for due in lease(session, lane_limit=1)} == {("t", "slow.test")}
    assert lease(session, lane_limit=2, busy={("t", "slow.test"): 2}) == []


def test_tenant_with_many_hosts_leaves_room_for_the_others(session: Session) -> None:
    add_endpoint(session)
    add_endpoint(session, tenant="other")
    for number in range(6):
        add_due(session, url=f"https://{number}.test/")
    add_due(session, url="https://0.test/", tenant="other")
    leased = lease(session, limit=10, tenant_limit=3, busy={("t", "x.test"): 1})
    assert sorted(due.lane for due in leased) == [("other", "0.test"), ("t", "0.test"), ("t", "1.test")]
    full = {("t", "x.test"): 2, ("t", "y.test"): 1}
    assert lease(session, tenant_limit=3, busy=full) == []


def test_backlog_of_one_lane_hides_no_other(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "NUM_OLDEST", 3)
    add_endpoint(session)
    add_due(session, url="https://dead.test/", count=5)
    add_due(session, url="https://a.test/")
    add_due(session, url="https://z.test/", count=2)
    leased = lease(session, lane_limit=4, busy={("t", "dead.test"): 4})
    assert sorted(due.host for due in leased) == ["a.test", "z.test", "z.test"]


def test_backlog_is_not_read_to_lease_a_few(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://fast.test/")
    add_due(session, url="https://dead.test/")
    session.execute(
        text("""
            INSERT INTO webhook_deliveries (id, event_id, endpoint_id, job_id, url, tenant, host, due_at)
            SELECT gen_random_uuid(), gen_random_uuid(), endpoint_id, job_id, url, tenant, host,
                due_at - interval '1 hour'
            FROM webhook_deliveries CROSS JOIN generate_series(1, 20000) WHERE host = 'dead.test'
        """)
    )
    session.execute(text("ANALYZE webhook_deliveries"))
    explain = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {webhooks.LEASE_DUE.text}")
    parameters = {"limit": 10, "lease_seconds": 60.0, "lane_limit": 4, "tenant_limit": 16, "num_oldest": 1000}
    busy = {"tenants": ["t"], "hosts": ["dead.test"], "counts": [4], "limits": [4]}
    [plan] = session.execute(explain, parameters | busy).scalar_one()
    assert num_rows_read(plan["Plan"]) < 10_000


def num_rows_read(node: dict[str, Any]) -> float:
    """Rows that a plan's scans of the table looked at."""
    here = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    below = sum(num_rows_read(child) for child in node.get("Plans", []))
    return below + (here if node.get("Relation Name") == "webhook_deliveries" else 0)


def test_job_whose_webhook_url_is_none_ends_all_the_same(session: Session) -> None:
    add_endpoint(session)
    for url in ("http://a..b/", "http:x", "\\"):
        add_due(session, url=url)
    assert [due.host for due in lease(session)] == ["", "", ""]


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
        [delivery] = await webhook_log.of_job(session, job_id)
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


def test_strained_lane_gets_one_at_a_time(session: Session) -> None:
    add_endpoint(session)
    add_due(session, url="https://slow.test/", count=3)
    add_due(session, url="https://fast.test/", count=3)
    strained = [("t", "slow.test"), ("t", "unknown.test")]
    leased = lease(session, lane_limit=3, strained=strained)
    assert sorted(due.host for due in leased) == ["fast.test"] * 3 + ["slow.test"]
    assert lease(session, lane_limit=3, strained=strained, busy={("t", "slow.test"): 1, ("t", "fast.test"): 3}) == []


def test_delivery_to_a_disabled_endpoint_is_leased_to_be_ended_unless_it_is_a_test(session: Session) -> None:
    endpoint = add_endpoint(session, url="https://a.test/")
    add_due(session, url="https://unused.test/")
    endpoint.disabled_at, endpoint.disabled_reason = now(session), "its owner disabled it"
    session.flush()
    [due] = lease(session)
    assert due.withheld == "the endpoint is disabled: its owner disabled it"
    session.execute(update(WebhookDelivery).values(due_at=text("clock_timestamp()")))
    session.execute(update(WebhookEvent).values(is_test=True))
    [due] = lease(session)
    assert due.withheld is None
