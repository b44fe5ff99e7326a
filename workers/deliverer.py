"""The threads that deliver webhooks in this process: many at once, few of them for any one host or tenant."""

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import webhook_health
from db.ids import public_id
from db.outage import is_away
from db.webhooks import Attempt, Due, Lane, lease_due, record_attempt
from workers.delivery import THROTTLED, Verdict, judge
from workers.webhooks import Reply, broken_off, not_sent, post

NUM_THREADS = 160  # they wait for endpoints nearly all of their time, each with four file descriptors
LANE_LIMIT = 4  # attempts of a tenant at one host at once: a slow or dead host holds no more threads than these
TENANT_LIMIT = 96  # attempts of a tenant at once: however many hosts it names, the others' threads are left alone
SILENT_SECONDS = 1.0  # without an answer: such a lane, or one that asks for fewer, gets one attempt at once
MAX_STRAINED = 1000  # lanes remembered as such
RECORD_SECONDS = 60.0  # how long an attempt that was made waits for Postgres to come back and note it
RETRY_SECONDS = 1.0  # between two tries at that

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
        tenant_limit: int = TENANT_LIMIT,
    ) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._allow_private = allow_private
        self._num_threads = num_threads
        self._lane_limit = lane_limit
        self._tenant_limit = tenant_limit
        self._lease_seconds = timeout_seconds + 3 * RECORD_SECONDS  # the last try at the note may take a while itself
        self._lock = threading.Lock()
        self._sending: Counter[Lane] = Counter()  # read and written under the lock
        self._strained: OrderedDict[Lane, None] = OrderedDict()  # under the lock: by their last attempt
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
            except Exception as error:
                if not is_away(error):
                    raise
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
                tenant_limit=self._tenant_limit,
                busy=self._sending,
                strained=self._strained.keys(),
            )

    def _run(self, due: Due) -> None:
        try:
            verdict = self._deliver(due)
            if _tells_health(due, verdict):
                self._insist(lambda session: _note_health(session, due, verdict))
        except Exception:  # not even the attempt could be noted: the lease runs out, and the delivery is tried again
            log.exception("webhook attempt not noted", extra={"delivery_id": str(due.delivery_id)})
        finally:
            with self._lock:
                self._sending[due.lane] -= 1
                self._sending += Counter()  # drops lanes at zero
        self.start_due()  # more may wait for the place that this one had

    def _deliver(self, due: Due) -> Verdict:
        """Send and note it. Whatever goes wrong counts as a failed attempt, so that every delivery has an end."""
        started_at = datetime.now(UTC)
        if due.withheld is not None:
            return self._note(due, not_sent(started_at, due.withheld))
        try:
            reply = self._post(due)
            self._hear(due.lane, reply)
            return self._note(due, reply)
        except Exception as error:
            if is_away(error):
                raise
            log.exception("webhook attempt broke off", extra={"delivery_id": str(due.delivery_id)})
            return self._note(due, broken_off(started_at, error))

    def _post(self, due: Due) -> Reply:
        event_id = public_id("evt_", due.event_id)
        reply = post(
            due.url,
            due.body,
            event_id=event_id,
            secrets=due.secrets,
            timeout_seconds=self._timeout_seconds,
            allow_private=self._allow_private,
        )
        job_id = due.job_id and public_id("job_", due.job_id)
        fields = {"event_id": event_id, "job_id": job_id, "status_code": reply.status_code, "error": reply.error}
        log.info("webhook %s", "delivered" if reply.error is None else "failed", extra=fields)
        return reply

    def _hear(self, lane: Lane, reply: Reply) -> None:
        """Remember whether the lane is strained: hosts that hang would hold most of the threads otherwise."""
        is_silent = reply.status_code is None and reply.duration_ms >= SILENT_SECONDS * 1000
        with self._lock:
            self._strained.pop(lane, None)
            if is_silent or reply.status_code in THROTTLED:
                self._strained[lane] = None
            if len(self._strained) > MAX_STRAINED:
                self._strained.popitem(last=False)

    def _note(self, due: Due, reply: Reply) -> Verdict:
        """Record the attempt, and say what it meant."""
        verdict = judge(reply, number=due.num_attempts + 1, is_test=due.is_test)
        self._insist(lambda session: _record(session, due, reply, verdict))
        return verdict

    def _insist(self, write: Callable[[Session], None]) -> None:
        """Run a transaction; while Postgres is away, again and again as long as the lease allows.

        Who closes waits for one more try: what cut off the last one may have been its connection alone, and an attempt
        that is not noted is made again.
        """
        deadline, is_last = time.monotonic() + RECORD_SECONDS, False
        while True:
            try:
                with Session(self._engine) as session, session.begin():
                    write(session)
                return
            except Exception as error:
                if is_last or not is_away(error) or time.monotonic() > deadline:
                    raise
                is_last = self._stop.wait(RETRY_SECONDS)


def _record(session: Session, due: Due, reply: Reply, verdict: Verdict) -> None:
    record_attempt(
        session,
        due.delivery_id,
        Attempt(reply.started_at, reply.duration_ms, reply.status_code, reply.error, reply.excerpt),
        outcome=verdict.outcome,
        retry_in_seconds=verdict.retry_in_seconds,
    )


def _tells_health(due: Due, verdict: Verdict) -> bool:
    """Whether the endpoint's row must hear of it. Most successes are of endpoints that work anyway."""
    is_news = verdict.outcome != "delivered" or due.is_failing
    return is_news and due.withheld is None and not due.is_test


def _note_health(session: Session, due: Due, verdict: Verdict) -> None:
    """In a transaction of its own: owners who change an endpoint lock it before its deliveries."""
    if verdict.outcome == "delivered":
        webhook_health.note_success(session, due.endpoint_id)
        return
    reason = webhook_health.note_failure(session, due.endpoint_id, is_gone=verdict.is_gone)
    if reason is not None:
        fields = {"endpoint_id": public_id("we_", due.endpoint_id), "reason": reason}
        log.warning("webhook endpoint disabled", extra=fields)
