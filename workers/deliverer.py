"""The threads that deliver webhooks in this process: many at once, few of them for any one endpoint."""

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from db.ids import public_id
from db.webhooks import Attempt, Due, Lane, lease_due, record_attempt
from workers.delivery import judge
from workers.webhooks import Reply, post

NUM_THREADS = 32
LANE_LIMIT = 4  # attempts at one endpoint's host at once: a slow or dead one holds no more threads than these
RECORD_SECONDS = 60.0  # how long an attempt that was made waits for Postgres to come back and note it
POSTGRES_AWAY = (OperationalError, PoolTimeout)

log = logging.getLogger(__name__)


class Deliverer:
    """Leases due deliveries and sends them. `start_due` is called by the task, and by each thread that ended one.

    A lease outlasts an attempt and the note of it, so a repeat can follow only a sender that was killed or cut off.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        timeout_seconds: float,
        allow_private: bool,
        num_threads: int = NUM_THREADS,
        lane_limit: int = LANE_LIMIT,
    ) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._allow_private = allow_private
        self._num_threads = num_threads
        self._lane_limit = lane_limit
        self._lease_seconds = 2 * timeout_seconds + 2 * RECORD_SECONDS  # resolving a name is not in the timeout
        self._lock = threading.Lock()
        self._sending: Counter[Lane] = Counter()  # read and written under the lock
        self._is_failing = False  # under the lock: an outage is logged when it begins, not every second
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="webhook")

    def start_due(self) -> int:
        """Start what is due and has room; returns how many deliveries that were, 0 while Postgres is away."""
        with self._lock:
            room = self._num_threads - self._sending.total()
            if room == 0 or self._stop.is_set():
                return 0
            try:
                dues = self._lease(room)
            except POSTGRES_AWAY as error:
                if not self._is_failing:
                    log.warning("webhooks wait for Postgres: %s", error)
                self._is_failing = True
                return 0
            self._is_failing = False
            for due in dues:
                self._sending[due.lane] += 1
                self._pool.submit(self._run, due)
        return len(dues)

    def close(self) -> None:
        """Start nothing more, and wait for the attempts under way, each bounded by its timeout."""
        self._stop.set()
        with self._lock:  # whoever is starting deliveries has handed them to the pool
            pass
        self._pool.shutdown()

    def _lease(self, room: int) -> list[Due]:
        with Session(self._engine) as session, session.begin():
            return lease_due(
                session,
                limit=room,
                lease_seconds=self._lease_seconds,
                lane_limit=self._lane_limit,
                busy=self._sending,
            )

    def _run(self, due: Due) -> None:
        try:
            self._deliver(due)
        except Exception:  # the lease runs out, and the delivery is tried again
            log.exception("webhook delivery broke off", extra={"delivery_id": str(due.delivery_id)})
        with self._lock:
            self._sending[due.lane] -= 1
            self._sending += Counter()  # drops lanes at zero
        self.start_due()  # more may wait for the place that this one had

    def _deliver(self, due: Due) -> None:
        event_id = public_id("evt_", due.event_id)
        reply = post(
            due.url,
            due.body,
            event_id=event_id,
            secret=due.secret,
            timeout_seconds=self._timeout_seconds,
            allow_private=self._allow_private,
        )
        self._note(due, reply)
        fields = {"event_id": event_id, "job_id": public_id("job_", due.job_id), "status_code": reply.status_code}
        log.info("webhook %s", "delivered" if reply.error is None else "failed", extra=fields | {"error": reply.error})

    def _note(self, due: Due, reply: Reply) -> None:
        """Record the attempt; while Postgres is away, again and again as long as the lease allows."""
        verdict = judge(reply, number=due.num_attempts + 1)
        attempt = Attempt(reply.started_at, reply.duration_ms, reply.status_code, reply.error, reply.excerpt)
        deadline = time.monotonic() + RECORD_SECONDS
        while True:
            try:
                with Session(self._engine) as session, session.begin():
                    record_attempt(
                        session,
                        due.delivery_id,
                        attempt,
                        outcome=verdict.outcome,
                        retry_in_seconds=verdict.retry_in_seconds,
                    )
                return
            except POSTGRES_AWAY:
                if time.monotonic() > deadline or self._stop.wait(1.0):
                    raise
