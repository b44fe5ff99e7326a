"""The webhook endpoint of a storm: takes every event, and remembers when it came."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from tests.receiver import Delivery, Say, receiver

ANSWER_SECONDS = 0.02  # so that a sender can be hit while it waits


@dataclass(frozen=True)
class Received:
    """One event as it came."""

    event_id: str
    body: bytes
    at: float  # monotonic, when the answer was about to be given
    is_valid: bool

    @property
    def data(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass
class Hooks:
    """By path: the transcript's key. Appended by the receiver's threads, read by others when it is quiet."""

    url: str
    secret: str
    received: dict[str, list[Received]] = field(default_factory=lambda: defaultdict(list))

    def take(self, delivery: Delivery) -> Say:
        """Keep it and answer."""
        sleep(ANSWER_SECONDS)
        event_id = delivery.headers.get("webhook-id", "")
        received = Received(event_id, delivery.body, monotonic(), self._is_valid(delivery))
        self.received[delivery.path.removeprefix("/")].append(received)
        return Say()

    def _is_valid(self, delivery: Delivery) -> bool:
        try:
            Webhook(self.secret).verify(delivery.body, delivery.headers)
        except WebhookVerificationError:
            return False
        return True


@contextmanager
def listening(secret: str) -> Iterator[Hooks]:
    """A running endpoint."""
    with receiver() as endpoint:
        hooks = Hooks(endpoint.url, secret)
        endpoint.answer = hooks.take
        yield hooks
