"""The hand-written message and event, held to what celery itself sends and accepts."""

import base64
import contextlib
import json
from typing import Any

import redis
from celery import Celery
from celery.events.state import State
from kombu.transport.virtual import Channel, Message

from db import queue
from db.ids import new_id
from db.queue import Ready
from db.queue_message import TASK, encode, encode_sent_event, event_channel
from db.settings import Settings

READY = Ready(new_id(), "m", 1, 1_700_000_000.25, 3)
OWN = {"delivery_tag", "reply_to", "ready_at", "num_blocks"}  # properties that differ, or that celery has not


def make_celery(settings: Settings) -> tuple[Celery, Any]:
    app = Celery(broker=settings.broker_url)
    app.conf.update(task_ignore_result=True, task_send_sent_event=True)

    @app.task(name=TASK, ignore_result=True)
    def generate(job_id: str) -> None:
        """Never run here."""

    return app, generate


def decoded(raw: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(raw)
    message["body"] = json.loads(base64.b64decode(message["body"]))
    return message


def test_message_is_what_apply_async_puts_on_the_list(settings: Settings, redis_client: redis.Redis) -> None:
    app, generate = make_celery(settings)
    name, job_id = queue.queue_name("m", 1), str(READY.job_id)
    generate.apply_async((job_id,), task_id=job_id, queue=name)
    theirs = redis_client.rpop(name)
    queue.push(redis_client, [READY])
    ours = redis_client.rpop(name)
    assert isinstance(theirs, bytes) and isinstance(ours, bytes)
    expected, found = decoded(theirs), decoded(ours)
    for message in (expected, found):
        del message["headers"]["origin"]
        message["properties"] = {key: value for key, value in message["properties"].items() if key not in OWN}
    assert found == expected
    assert list(json.loads(ours)) == list(json.loads(theirs))
    app.close()


def test_kombu_decodes_the_message_into_the_job_id_alone() -> None:
    message = Message(json.loads(encode(READY)), channel=Channel)  # its codecs are all that decoding needs
    assert message.properties["ready_at"] == READY.ready_at and message.properties["num_blocks"] == 3
    body = json.loads(base64.b64decode(json.loads(encode(READY))["body"]))
    assert body[:2] == [[str(READY.job_id)], {}]


def test_stamp_is_found_at_the_end_of_the_message_whatever_the_clock_says() -> None:
    for ready_at in (0.5, 1_700_000_000.0, 1_700_000_000.000001, 99_999_999_999.999999):
        raw = encode(Ready(READY.job_id, "m", 1, ready_at, 0))
        assert queue._stamp(raw) == (round(ready_at, 6), 0)


def test_sent_event_is_what_celery_publishes(settings: Settings, redis_client: redis.Redis) -> None:
    app, generate = make_celery(settings)
    subscription = redis_client.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(event_channel(0))
    assert subscription.get_message(timeout=5) is None  # the subscription stands
    job_id = str(READY.job_id)
    generate.apply_async((job_id,), task_id=job_id, queue=queue.queue_name("m", 1))
    queue.push(redis_client, [READY])
    expected, found = (decoded(subscription.get_message(timeout=5)["data"]) for _ in range(2))
    for event in (expected, found):
        event["properties"].pop("delivery_tag")
        event["body"].pop("timestamp")
        event["body"].pop("clock")
    assert found == expected
    app.close()


def test_celerys_event_receiver_lists_the_queued_job(settings: Settings, redis_client: redis.Redis) -> None:
    app, _ = make_celery(settings)
    state = State()
    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        with receiver.consumer_context() as (own_connection, _, _):
            with contextlib.suppress(TimeoutError):
                own_connection.drain_events(timeout=0.01)  # subscribes
            queue.push(redis_client, [READY])
            own_connection.drain_events(timeout=5)
    task = state.tasks[str(READY.job_id)]
    assert (task.name, task.state, task.routing_key) == (TASK, "PENDING", "generate.m.normal")
    assert task.args == f"('{READY.job_id}',)"
    app.close()


def test_event_of_another_database_goes_to_its_channel() -> None:
    assert event_channel(3) == "/3.celeryev/task.sent"
    assert b'"routing_key": "task.sent"' in encode_sent_event(READY)
