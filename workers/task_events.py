"""Celery's task events, sent once more after the broker was away: who shows them may have missed some, ends above all.

Events are published to whoever listens just then. After an outage the worker is often connected before Flower is, and
Celery itself drops what it had buffered at the moment of the loss; a job that ended then would be shown as running for
ever.
"""

import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from time import time
from typing import Any

from celery import Celery, bootsteps
from celery.events.dispatcher import EventDispatcher
from celery.worker.consumer import Consumer

log = logging.getLogger(__name__)

NUM_KEPT = 10_000  # events, of about three a task
MARGIN_SECONDS = 10.0  # before the loss was noticed
# By then Flower listens again: Celery tries to connect 2, 4, 6, ... s after the last try, at most 30.
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 15.0, 35.0
LONG_OUTAGE_SECONDS = 45.0  # then tries are more than 12 s apart
NUM_AT_ONCE, SLICE_SECONDS = 240, 0.1  # a slice is a few milliseconds of the event loop


class TaskEvents(EventDispatcher):
    """Celery's dispatcher of one connection, which keeps the last task events of this one and those before."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # By the hub thread or a pool's threads, one append at a time; (type, fields with their timestamp).
        self._kept: deque[tuple[str, dict[str, Any]]] = deque(maxlen=NUM_KEPT)
        super().__init__(*arguments, **options)

    def send(self, type: str, *arguments: Any, **fields: Any) -> None:
        """As Celery's, and keep it when it is of a task."""
        if type.startswith("task-"):
            fields.setdefault("timestamp", time())
            self._kept.append((type, fields))
        super().send(type, *arguments, **fields)

    def extend_buffer(self, other: EventDispatcher) -> None:
        """Celery calls this on the dispatcher of a new connection."""
        super().extend_buffer(other)
        assert isinstance(other, TaskEvents)
        self._kept = other._kept

    def kept(self, since: float) -> list[tuple[str, dict[str, Any]]]:
        """The events since that time (Unix seconds), the oldest first."""
        return [event for event in self._kept.copy() if event[1]["timestamp"] >= since]

    def repeat(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Send kept events as they were, time and all. Who has seen them knows them by the task and the type."""
        for type, fields in events:
            super().send(type, **fields)


class Repetition(bootsteps.StartStopStep):
    """Sends what may have been missed, when a lost connection has been back for a while. Hub thread only."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Consumer, **options: Any) -> None:
        self._lost_at: float | None = None  # Unix seconds; None: nothing since can have been missed
        super().__init__(consumer, **options)

    def start(self, consumer: Consumer) -> None:
        """Connected. Losing the connection again clears the timer."""
        if self._lost_at is not None:
            is_long = time() - self._lost_at > LONG_OUTAGE_SECONDS
            seconds = LONG_PAUSE_SECONDS if is_long else PAUSE_SECONDS
            consumer.timer.call_after(seconds, self._begin, (consumer, self._lost_at - MARGIN_SECONDS))

    def stop(self, consumer: Consumer) -> None:
        """Not connected any more. What was not repeated yet will be."""
        if self._lost_at is None:
            self._lost_at = time()

    def _begin(self, consumer: Any, since: float) -> None:
        events = consumer.event_dispatcher.kept(since)
        log.info("task events are sent again", extra={"num_events": len(events)})
        self._go_on(consumer, iter(events))

    def _go_on(self, consumer: Any, events: Iterator[tuple[str, dict[str, Any]]]) -> None:
        part = list(islice(events, NUM_AT_ONCE))
        if not part:
            self._lost_at = None
            return
        consumer.event_dispatcher.repeat(part)
        consumer.timer.call_after(SLICE_SECONDS, self._go_on, (consumer, events))


def repeat_after_outages(app: Celery) -> None:
    """Make the worker of this app do so."""
    app.events.dispatcher_cls = "workers.task_events:TaskEvents"
    app.steps["consumer"].add(Repetition)
