"""From the outbox to the endpoint and back, with a real Postgres and real sockets."""

import json
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
import redis
from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.orm import Session
from standardwebhooks import Webhook

from db.ids import public_id
from db.keys import default_secret
from db.models import WebhookAttempt, WebhookDelivery
from tests.receiver import Delivery, Say, receiver
from tests.workers.delivery_world import attempts_of, make_deliverer, make_due, run_due
from tests.workers.world import TENANT, World
from workers.webhooks import Reply

CUT_OFF = "pg_terminate_backend(pid, 20000)"  # waits until it is gone
IS_OTHER_CLIENT = "pid <> pg_backend_pid() AND backend_type = 'client backend'"


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis) -> World:
    return World(engine, redis_client)


def test_event_of_an_ended_job_arrives_signed_with_the_tenants_secret(world: World) -> None:
    with receiver() as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        assert run_due(world.engine) == 1
        delivery = endpoint.next()
    with Session(world.engine) as session:
        secret = default_secret(session, TENANT)
    told = Webhook(secret).verify(delivery.body, delivery.headers)
    assert told["type"] == "job.succeeded"
    assert told["id"] == delivery.headers["webhook-id"]
    assert told["data"]["id"] == public_id("job_", job_id)
    assert (world.delivery(job_id).status, world.delivery(job_id).due_at) == ("delivered", None)
    [attempt] = attempts_of(world, job_id)
    assert (attempt.number, attempt.status_code, attempt.error) == (1, 204, None)


def test_result_is_readable_when_its_webhook_arrives(world: World) -> None:
    statuses: list[str] = []

    def answer(delivery: Delivery) -> Say:
        job_id = UUID(json.loads(delivery.body)["data"]["id"].removeprefix("job_"))
        statuses.append(world.job(job_id).status)
        return Say()

    with receiver(answer) as endpoint:
        world.finished_jobs(endpoint.url)
        run_due(world.engine)
    assert statuses == ["succeeded"]


def test_delivered_event_is_not_sent_again(world: World) -> None:
    with receiver() as endpoint:
        world.finished_jobs(endpoint.url)
        assert [run_due(world.engine), run_due(world.engine)] == [1, 0]
        assert endpoint.got.qsize() == 1


def test_retry_repeats_the_id_and_the_bytes_and_both_attempts_are_on_record(world: World) -> None:
    answers = iter([Say(500, body=b"try later"), Say(204)])
    with receiver(lambda delivery: next(answers)) as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        run_due(world.engine)
        assert world.delivery(job_id).status == "pending"
        assert run_due(world.engine) == 0  # not before its time
        make_due(world)
        assert run_due(world.engine) == 1
        first, second = endpoint.next(), endpoint.next()
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    attempts = [(a.number, a.status_code, a.error, a.response_excerpt) for a in attempts_of(world, job_id)]
    assert attempts == [(1, 500, "answered 500", "try later"), (2, 204, None, "")]
    assert world.delivery(job_id).status == "delivered"


def test_next_attempt_is_due_by_the_schedule_and_by_the_endpoints_wish(world: World) -> None:
    with receiver(lambda delivery: Say(503, {"retry-after": "100"} if delivery.path == "/busy" else {})) as endpoint:
        plain, busy = world.finished_jobs(endpoint.url + "/plain", endpoint.url + "/busy")
        run_due(world.engine)
    with Session(world.engine) as session:
        statement = select(WebhookDelivery.job_id, WebhookDelivery.due_at, WebhookAttempt.started_at).join(
            WebhookAttempt, WebhookAttempt.delivery_id == WebhookDelivery.id
        )
        waits = {job_id: due_at - started_at for job_id, due_at, started_at in session.execute(statement)}
    assert timedelta(seconds=4.5) <= waits[plain] < timedelta(seconds=60)
    assert timedelta(seconds=100) <= waits[busy]


def test_redirect_is_a_failed_attempt_that_its_owner_can_read(world: World) -> None:
    with receiver(lambda delivery: Say(301, {"location": "https://elsewhere.test/"})) as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        run_due(world.engine)
    [attempt] = attempts_of(world, job_id)
    assert attempt.status_code == 301
    assert attempt.error is not None and "https://elsewhere.test/" in attempt.error
    assert world.delivery(job_id).status == "pending"


def test_private_address_is_refused_with_its_reason_and_nothing_is_sent(world: World) -> None:
    with receiver() as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        run_due(world.engine, allow_private=False)
        assert endpoint.got.empty()
    assert world.delivery(job_id).status == "failed"
    [attempt] = attempts_of(world, job_id)
    assert attempt.error is not None and "HEADRACE_WEBHOOK_ALLOW_PRIVATE=1" in attempt.error


def test_event_is_given_up_after_ten_attempts(world: World) -> None:
    with receiver(lambda delivery: Say(500)) as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        for _ in range(10):
            make_due(world)
            assert run_due(world.engine) == 1
        assert endpoint.got.qsize() == 10
    delivery = world.delivery(job_id)
    assert (delivery.status, delivery.num_attempts, delivery.due_at) == ("failed", 10, None)


@pytest.mark.parametrize("error", [RuntimeError("of ours"), UnicodeError("odd"), OverflowError("long"), MemoryError()])
def test_attempt_that_breaks_off_is_a_failed_one_on_the_schedule_and_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def post(*args: object, **options: object) -> Reply:
        raise error

    monkeypatch.setattr("workers.deliverer.post", post)
    [job_id] = world.finished_jobs("https://example.com/")
    for _ in range(10):
        make_due(world)
        assert run_due(world.engine) == 1
    assert (world.delivery(job_id).status, world.delivery(job_id).due_at) == ("failed", None)
    assert {attempt.error for attempt in attempts_of(world, job_id)} == {f"broke off: {type(error).__name__}"}
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 10


def test_attempt_that_cannot_be_noted_as_it_went_is_noted_as_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(*args: object, **options: object) -> Reply:
        return Reply(datetime.now(UTC), 1, 200, None, "what Postgres cannot hold: \x00", None)

    monkeypatch.setattr("workers.deliverer.post", post)
    [job_id] = world.finished_jobs("https://example.com/")
    run_due(world.engine)
    [attempt] = attempts_of(world, job_id)
    assert attempt.error is not None and attempt.error.startswith("broke off: ")
    assert world.delivery(job_id).status == "pending"


def test_endpoint_whose_retry_after_no_clock_can_read_is_tried_again_on_the_schedule(world: World) -> None:
    wish = {"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"}
    with receiver(lambda delivery: Say(503, wish)) as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        run_due(world.engine)
    [attempt] = attempts_of(world, job_id)
    assert (attempt.status_code, attempt.error) == (503, "answered 503")


def test_url_that_leads_nowhere_ends_with_its_reason(world: World) -> None:
    [job_id] = world.finished_jobs("http://a..b/")
    run_due(world.engine)
    [attempt] = attempts_of(world, job_id)
    assert world.delivery(job_id).status == "failed"
    assert attempt.error == "not a URL: a..b can be no host"


def test_attempt_that_was_made_is_noted_when_postgres_comes_back(world: World) -> None:
    def cut_connections(delivery: Delivery) -> Say:
        with world.engine.connect() as connection:
            connection.execute(text(f"SELECT {CUT_OFF} FROM pg_stat_activity WHERE {IS_OTHER_CLIENT}"))
        return Say()

    with receiver(cut_connections) as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        deliverer = make_deliverer(world.engine)
        assert deliverer.start_due() == 1
        endpoint.next()
        deliverer.close()
    assert world.delivery(job_id).status == "delivered"


def test_attempt_is_noted_though_the_note_is_cut_off_while_the_deliverer_closes(world: World) -> None:
    cut: list[int] = []

    def cut_off(connection: Connection) -> None:
        """The first transaction of the thread that delivers: its connection was sound when it was taken."""
        if threading.current_thread().name.startswith("webhook") and not cut:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            cut.append(driver.info.backend_pid)
            with world.engine.connect() as other:
                other.execute(text(f"SELECT {CUT_OFF} FROM pg_stat_activity WHERE pid = {cut[0]}"))

    with receiver() as endpoint:
        [job_id] = world.finished_jobs(endpoint.url)
        event.listen(world.engine, "begin", cut_off)
        try:
            run_due(world.engine)
        finally:
            event.remove(world.engine, "begin", cut_off)
    assert len(cut) == 1
    assert world.delivery(job_id).status == "delivered"
    assert [(attempt.number, attempt.status_code) for attempt in attempts_of(world, job_id)] == [(1, 204)]


def test_job_without_a_webhook_url_sends_nothing(world: World) -> None:
    world.finished_jobs(None)
    assert run_due(world.engine) == 0
