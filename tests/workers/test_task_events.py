"""Which task events are sent again after an outage: all since shortly before it, in their order, within a bound."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from db.broker import make_app
from db.settings import Settings
from tests.workers.worker_process import wait_until
from workers import task_events
from workers.task_events import MARGIN_SECONDS, Repetition, repeat_after_outages


class Consumer:
    """What the step sees of Celery's: a dispatcher for each connection, and a timer, which the test runs."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.event_dispatcher: Any = None
        self.timer = self
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.step = Repetition(self)  # type: ignore[arg-type]
        self.connect()

    def call_after(self, seconds: float, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.due.append((seconds, act, arguments))

    def connect(self) -> None:
        connection = self._app.connection_for_write()
        new = self._app.events.Dispatcher(connection, hostname="engine@here", buffer_group=["task"])
        before, self.event_dispatcher = self.event_dispatcher, new
        if before is not None:
            self.event_dispatcher.extend_buffer(before)
        self.step.start(self)  # type: ignore[arg-type]

    def lose(self) -> None:
        self.step.stop(self)  # type: ignore[arg-type]
        self.due.clear()

    def end_task(self, task_id: str) -> None:
        self.event_dispatcher.send("task-succeeded", uuid=task_id, result="1")

    def run_due(self) -> list[float]:
        """Run all that is due now or becomes so; returns how long each waited."""
        waits = []
        while self.due:
            seconds, act, arguments = self.due.pop(0)
            waits.append(seconds)
            act(*arguments)
        return waits


@pytest.fixture
def consumer(settings: Settings) -> Consumer:
    app = make_app(settings)
    repeat_after_outages(app)
    return Consumer(app)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Its one entry is the time."""
    now = [1_000_000.0]
    monkeypatch.setattr(task_events, "time", lambda: now[0])
    yield now


@pytest.fixture
def heard(consumer: Consumer, redis_client: redis.Redis) -> Iterator[Callable[[], list[str]]]:
    """Ids of ended tasks, in the order in which a listener heard of them that comes when this is called first."""
    with redis_client.pubsub(ignore_subscribe_messages=True) as subscription:

        def listen() -> list[str]:
            subscription.psubscribe("*celeryev*")
            consumer.run_due()
            consumer.end_task("last")
            consumer.event_dispatcher.flush()
            ids: list[str] = []
            while "last" not in ids:
                message = wait_until(lambda: subscription.get_message(timeout=1), "events")
                body = base64.b64decode(json.loads(message["data"])["body"])
                ids += [event["uuid"] for event in json.loads(body)]
            return ids[:-1]

        yield listen


def test_events_before_and_within_the_outage_are_sent_again_and_older_ones_are_not(
    consumer: Consumer, clock: list[float], heard: Callable[[], list[str]]
) -> None:
    for seconds_before, task_id in ((MARGIN_SECONDS + 1, "old"), (MARGIN_SECONDS - 1, "just before"), (0, "at")):
        clock[0] = 1_000_000.0 - seconds_before
        consumer.end_task(task_id)
    consumer.lose()
    consumer.end_task("in it")
    consumer.connect()
    consumer.end_task("before anybody listened")
    consumer.event_dispatcher.flush()
    assert heard() == ["just before", "at", "in it", "before anybody listened"]


def test_nothing_is_sent_again_without_an_outage_nor_twice_after_one(
    consumer: Consumer, clock: list[float], heard: Callable[[], list[str]]
) -> None:
    consumer.end_task("a")
    consumer.event_dispatcher.flush()
    assert heard() == []
    consumer.lose()
    consumer.connect()
    assert heard() == ["a", "last"]
    clock[0] += 2 * MARGIN_SECONDS
    consumer.lose()
    consumer.connect()
    assert heard() == []


def test_connection_that_is_lost_before_the_repetition_does_not_forget_the_first_outage(
    consumer: Consumer, clock: list[float], heard: Callable[[], list[str]]
) -> None:
    consumer.lose()
    consumer.end_task("in the first")
    clock[0] += 5
    consumer.connect()
    clock[0] += MARGIN_SECONDS + 4
    consumer.lose()
    clock[0] += 5
    consumer.connect()
    assert heard() == ["in the first"]


def test_repetition_waits_longer_when_the_listeners_may_be_slower_to_come_back(
    consumer: Consumer, clock: list[float]
) -> None:
    waits = []
    for outage_seconds in (5, 120):
        consumer.lose()
        clock[0] += outage_seconds
        consumer.connect()
        waits.append(consumer.run_due()[0])
    assert waits == [15, 35]


def test_no_more_events_are_kept_than_the_bound_and_they_are_sent_in_slices(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_events, "NUM_KEPT", 10)
    monkeypatch.setattr(task_events, "NUM_AT_ONCE", 4)
    app = make_app(settings)
    repeat_after_outages(app)
    consumer = Consumer(app)
    for number in range(25):
        consumer.end_task(str(number))
    consumer.lose()
    consumer.connect()
    assert [fields["uuid"] for _, fields in consumer.event_dispatcher.kept(0)] == [str(n) for n in range(15, 25)]
    assert len(consumer.run_due()) == 4  # the pause, then after each of 4 + 4 + 2 events
