"""Deliveries to endpoints that people manage: signatures, health, withheld events, tests; real Postgres and sockets."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from openai import OpenAI
from sqlalchemy import Engine, delete, select, update
from sqlalchemy.orm import Session

from db.ids import new_id
from db.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from tests.db.rows import add_endpoint, in_seconds
from tests.receiver import Delivery, Say, receiver
from tests.workers.delivery_world import attempts_of, make_deliverer, make_due, run_due
from tests.workers.world import TENANT, World

OLD, NEW, LAPSED = ("whsec_b2xkIHNlY3JldA==", "whsec_bmV3IHNlY3JldA==", "whsec_bGFwc2VkIHNlY3JldA==")


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis) -> Iterator[World]:
    yield World(engine, redis_client)
    with Session(engine) as session, session.begin():
        session.execute(delete(WebhookEndpoint))  # they would get what later tests' jobs tell


def add(world: World, url: str, **fields: Any) -> UUID:
    with Session(world.engine) as session, session.begin():
        return add_endpoint(session, url=url, **fields).id


def endpoint_of(world: World, endpoint_id: UUID) -> WebhookEndpoint:
    with Session(world.engine) as session:
        return session.get_one(WebhookEndpoint, endpoint_id)


def change(world: World, endpoint_id: UUID, **values: Any) -> None:
    with Session(world.engine) as session, session.begin():
        session.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id).values(**values))


def add_test(world: World, endpoint_id: UUID) -> UUID:
    """A test event for the endpoint; returns its delivery's id."""
    with Session(world.engine) as session, session.begin():
        endpoint = session.get_one(WebhookEndpoint, endpoint_id)
        event_id, delivery_id = new_id(), new_id()
        event = WebhookEvent(id=event_id, tenant=TENANT, type="job.dead", body=b"{}", is_test=True)
        whither = {"endpoint_id": endpoint_id, "url": endpoint.url, "host": endpoint.host}
        session.add_all([event, WebhookDelivery(id=delivery_id, event_id=event_id, tenant=TENANT, **whither)])
        return delivery_id


def status_of(world: World, delivery_id: UUID) -> str:
    with Session(world.engine) as session:
        return session.scalars(select(WebhookDelivery.status).where(WebhookDelivery.id == delivery_id)).one()


def test_unchanged_openai_client_verifies_an_event_with_either_live_secret(world: World) -> None:
    live, lapsed = in_seconds(3600).isoformat(), in_seconds(-1).isoformat()
    old = [{"secret": OLD, "until": live}, {"secret": LAPSED, "until": lapsed}]
    with receiver() as endpoint:
        add(world, endpoint.url, secret=NEW, old_secrets=old)
        world.finished_jobs(None)
        run_due(world.engine)
        delivery = endpoint.next()
    webhooks = OpenAI(api_key="unused").webhooks
    for secret in (NEW, OLD):
        assert str(webhooks.unwrap(delivery.body, delivery.headers, secret=secret).type) == "job.succeeded"
    with pytest.raises(Exception, match="signature"):
        webhooks.unwrap(delivery.body, delivery.headers, secret=LAPSED)
    assert len(delivery.headers["webhook-signature"].split(" ")) == 2


def test_410_disables_the_endpoint_and_what_is_on_its_way_ends_unsent(world: World) -> None:
    with receiver(lambda delivery: Say(410)) as endpoint:
        endpoint_id = add(world, endpoint.url)
        first, second = world.finished_jobs(None, None)
        run_due(world.engine, lane_limit=1)
        run_due(world.engine, lane_limit=1)
        assert endpoint.got.qsize() == 1
    row = endpoint_of(world, endpoint_id)
    assert row.disabled_at is not None and row.disabled_reason is not None and "410" in row.disabled_reason
    reasons = {attempts_of(world, job_id)[0].error for job_id in (first, second)}
    assert reasons == {"answered 410", f"not sent: the endpoint is disabled: {row.disabled_reason}"}
    assert {world.delivery(job_id).status for job_id in (first, second)} == {"failed"}
    [third] = world.finished_jobs(None)
    with Session(world.engine) as session:
        assert session.scalars(select(WebhookDelivery).where(WebhookDelivery.job_id == third)).all() == []


def test_410_of_a_jobs_own_url_concerns_no_other_job(world: World) -> None:
    with receiver(lambda delivery: Say(410 if delivery.path == "/gone" else 204)) as endpoint:
        gone, other = world.finished_jobs(endpoint.url + "/gone", endpoint.url + "/other")
        run_due(world.engine)
    assert (world.delivery(gone).status, world.delivery(other).status) == ("failed", "delivered")


def test_endpoint_that_is_enabled_in_time_gets_what_was_on_its_way(world: World) -> None:
    answers = iter([Say(500), Say(204)])
    with receiver(lambda delivery: next(answers)) as endpoint:
        endpoint_id = add(world, endpoint.url)
        [job_id] = world.finished_jobs(None)
        run_due(world.engine)
        change(world, endpoint_id, disabled_at=in_seconds(0), disabled_reason="its owner disabled it")
        change(world, endpoint_id, disabled_at=None, disabled_reason=None)
        make_due(world)
        run_due(world.engine)
    assert world.delivery(job_id).status == "delivered"


def test_endpoint_fails_from_its_first_failure_to_its_next_success(world: World) -> None:
    answers = iter([Say(500), Say(204)])
    with receiver(lambda delivery: next(answers)) as endpoint:
        endpoint_id = add(world, endpoint.url)
        world.finished_jobs(None)
        run_due(world.engine)
        assert endpoint_of(world, endpoint_id).failing_since is not None
        make_due(world)
        run_due(world.engine)
        assert endpoint_of(world, endpoint_id).failing_since is None


def test_endpoint_whose_every_attempt_failed_for_five_days_is_disabled(world: World) -> None:
    with receiver(lambda delivery: Say(500)) as endpoint:
        endpoint_id = add(world, endpoint.url, failing_since=in_seconds(-5 * 86400 - 60))
        world.finished_jobs(None)
        run_due(world.engine)
    assert endpoint_of(world, endpoint_id).disabled_reason == "every attempt has failed for 5 days"


def test_event_of_a_deleted_endpoint_ends_unsent_with_its_reason(world: World) -> None:
    with receiver() as endpoint:
        endpoint_id = add(world, endpoint.url)
        [job_id] = world.finished_jobs(None)
        with Session(world.engine) as session, session.begin():
            session.delete(session.get_one(WebhookEndpoint, endpoint_id))
        run_due(world.engine)
        assert endpoint.got.empty()
    [attempt] = attempts_of(world, job_id)
    assert (world.delivery(job_id).status, attempt.error) == ("failed", "not sent: the endpoint was deleted")


def test_test_is_sent_once_also_to_a_disabled_endpoint_and_changes_nothing_of_its_health(world: World) -> None:
    answers = iter([Say(500), Say(204), Say(410)])
    since = in_seconds(-60)
    with receiver(lambda delivery: next(answers)) as endpoint:
        fields = {"disabled_at": since, "disabled_reason": "its owner disabled it", "failing_since": since}
        endpoint_id = add(world, endpoint.url, **fields)
        statuses = []
        for _ in range(3):
            delivery_id = add_test(world, endpoint_id)
            run_due(world.engine)
            statuses.append(status_of(world, delivery_id))
        assert endpoint.got.qsize() == 3
    assert statuses == ["failed", "delivered", "failed"]
    row = endpoint_of(world, endpoint_id)
    assert (row.failing_since, row.disabled_reason) == (since, "its owner disabled it")


def test_secrets_that_an_endpoint_repeats_are_not_in_the_log(world: World) -> None:
    def repeat(delivery: Delivery) -> Say:
        return Say(400, body=f"bad signature {delivery.headers['webhook-signature']} for {NEW}".encode())

    with receiver(repeat) as endpoint:
        add(world, endpoint.url, secret=NEW)
        [job_id] = world.finished_jobs(None)
        run_due(world.engine)
        signature = endpoint.next().headers["webhook-signature"]
    [attempt] = attempts_of(world, job_id)
    assert attempt.response_excerpt is not None and attempt.response_excerpt.startswith("bad signature")
    assert signature.removeprefix("v1,") not in attempt.response_excerpt
    assert NEW.removeprefix("whsec_") not in attempt.response_excerpt


def test_host_that_did_not_answer_gets_one_attempt_at_once_until_it_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.deliverer.SILENT_SECONDS", 0.0)
    hanging, released = threading.Semaphore(0), threading.Event()

    def hang(delivery: Delivery) -> Say:
        hanging.release()
        released.wait(60)
        return Say()

    with receiver(hang) as endpoint:
        add(world, endpoint.url)
        deliverer = make_deliverer(world.engine, timeout_seconds=0.5)
        try:
            world.finished_jobs(None)
            deliverer.start_due()
            assert hanging.acquire(timeout=20)
            while deliverer._sending.total():  # until the first attempt has timed out and was noted
                threading.Event().wait(0.01)
            deliverer._timeout_seconds = 60.0
            world.finished_jobs(None, None, None)
            assert deliverer.start_due() == 1
            released.set()
            assert all(hanging.acquire(timeout=20) for _ in range(3))
        finally:
            released.set()
            deliverer.close()
