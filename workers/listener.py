"""The thread that hears what is published for this worker: cancels, and news that a list is no longer empty.

Both only hasten what would happen anyway: the reconcile finds every cancel, the puller looks at the lists every second.
"""

import logging
import threading
from collections.abc import Callable
from uuid import UUID

import redis
from redis.client import PubSub

from workers.lease import Lease
from workers.outage import Outage
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS = 1.0


class Listener(WorkerThread):
    """Subscribed to `wake.<model>` and to `cancel.<worker_id>`, whatever the worker's id is at the time."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        model: str,
        lease: Lease,
        on_wake: Callable[[], None],
        on_cancel: Callable[[UUID], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__("listener", on_failure)
        self._redis = client
        self._model = model
        self._lease = lease
        self._on_wake = on_wake
        self._on_cancel = on_cancel
        self._outage = Outage(log, "cancels and wake-ups are not heard")
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def work(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._redis.pubsub(ignore_subscribe_messages=True) as subscription:  # type: ignore[no-untyped-call]
                    self._listen(subscription)
            except redis.RedisError as error:
                self._outage.seen(error)
                self._stopping.wait(RETRY_SECONDS)

    def _listen(self, subscription: PubSub) -> None:
        worker_id = self._lease.worker_id
        subscription.subscribe(f"wake.{self._model}", f"cancel.{worker_id}")
        self._outage.over()
        self._on_wake()  # for what was published before
        while not self._stopping.is_set() and self._lease.worker_id == worker_id:
            message = subscription.get_message(timeout=POLL_SECONDS)
            if message is not None and message["type"] == "message":
                self._hear(message["channel"].decode(), message["data"].decode(errors="replace"))

    def _hear(self, channel: str, data: str) -> None:
        if channel.startswith("wake."):
            self._on_wake()
            return
        try:
            self._on_cancel(UUID(data))
        except ValueError:
            log.warning("a cancel names no job: %r", data[:64])
