"""The thread that keeps this worker's lease, and keeps what it holds and what Postgres says it holds the same.

Every two seconds it reconciles: a running row that nobody here holds is handed back, a held job without its row is
dropped, a cancel that did not arrive by message arrives here. The renewal stops while the engine is stuck.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from time import monotonic, time
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from db import jobs, workers
from db.ids import new_id
from db.jobs import Held, Ready
from db.models import Status, Worker
from db.settings import Settings
from workers.held import HeldJob, HeldJobs, Outcome
from workers.loading import Card
from workers.loop import EngineLoop
from workers.outage import Outage
from workers.process import this_process
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0  # at most; less when leases are renewed more often
# A step may take a lease, or a few times as long as the longest before it: on a slow machine a chunk of a long prompt
# does. After that the lease is not renewed, and after as long again the engine counts as hung for good.
STUCK_STEPS = 3.0
HUNG_TIMES = 2.0
FROZEN_LEASES = 0.5  # a pause that lasts so many leases longer than it was to: the whole process stood still


class EngineHung(Exception):
    """A step does not end. Nothing but the end of the process ends it."""


class Lease(WorkerThread):
    """One row in `workers`, renewed; a new row, and a new id, at every process start and after a lost lease."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        *,
        name: str,
        held_jobs: HeldJobs,
        loop: EngineLoop,
        settle: Callable[[HeldJob, Outcome], None],
        give_back: Callable[[list[Ready]], None],
        free_predecessors: Callable[[], int],
        on_renewed: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`name` is Celery's node name; `give_back` puts released jobs to the front of their lists."""
        super().__init__("lease", on_failure)
        self._settings = settings
        self._engine = engine
        self._node_name = name
        self._held_jobs = held_jobs
        self._loop = loop
        self._settle = settle
        self._give_back = give_back
        self._free_predecessors = free_predecessors
        self._on_renewed = on_renewed
        self._round_seconds = min(ROUND_SECONDS, settings.renew_seconds)
        self._outage = Outage(log, "the lease is not renewed")
        self._wake = threading.Event()
        self._is_stopping = False  # the stopping thread, once
        self._card: Card | None = None  # the engine thread, once
        self._is_registered = False  # this thread: there is a row for `worker_id`
        self._is_doubted = False  # set by the puller thread, reset by this one
        self._is_first = False  # this thread: no dead worker of this host holds jobs any more
        self.status = "loading"  # whoever changes the phase: engine thread, then the hub thread
        self._renewed_status: str | None = None  # this thread
        self._unheld: dict[tuple[UUID, int], int] = {}  # this thread: rounds for which a row was not held here
        self._awake_since = 0.0  # this thread: monotonic; when the process last stood still
        self.worker_id = new_id()  # this thread; others read it, and what they claim carries it
        self.renewed_at: float | None = None  # this thread: monotonic; None: not yet
        self.clock_offset = 0.0  # this thread: seconds to add to our clock to have Postgres's
        self.num_live = 1  # this thread: live workers of the model, at least this one

    def announce(self, card: Card) -> None:
        """The model's shape is known: register, so that submits are accepted while it loads."""
        self._card = card
        self._wake.set()

    def set_status(self, status: str) -> None:
        """loading, ready or draining; renewed at once."""
        self.status = status
        self._wake.set()

    def now(self) -> float:
        """The time in Unix seconds, on Postgres's clock: what is compared with `ready_at`. Any thread."""
        return time() + self.clock_offset

    def is_fresh(self) -> bool:
        """Whether jobs may be claimed: the lease was renewed so lately that nobody can have judged it lost."""
        renewed_at = self.renewed_at
        if self._is_doubted or renewed_at is None:
            return False
        return monotonic() - renewed_at < self._settings.lease_seconds / 2

    def doubt(self) -> None:
        """Somebody saw that the lease may be lost: nothing is claimed until it is renewed or begun anew, now."""
        self._is_doubted = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread, then the row: what it still holds is free at once."""
        self._is_stopping = True
        self._wake.set()
        if self.is_alive():
            self.join(timeout=5)
        try:
            with Session(self._engine) as session:
                workers.stop(session, self.worker_id)
                session.commit()
        except SQLAlchemyError as error:
            log.warning("the worker's row could not be ended: %s", error)

    def work(self) -> None:
        while not self._is_stopping:
            try:
                self.round()
                self._outage.over()
            except (SQLAlchemyError, redis.RedisError) as error:
                self._outage.seen(error)
            self._pause()

    def _pause(self) -> None:
        began = monotonic()
        self._wake.wait(self._round_seconds)
        self._wake.clear()
        seconds_late = monotonic() - began - self._round_seconds
        if seconds_late > FROZEN_LEASES * self._settings.lease_seconds:
            self._awake_since = monotonic()

    def round(self) -> None:
        """Renew when it is due, then reconcile. Raises what the stores raise."""
        self._check_engine()
        if self._card is not None:
            self._keep(self._card)
        if not self._is_first:
            self._free_predecessors()
            self._is_first = True

    def _seconds_stuck(self) -> float:
        """For how long the engine has retired no step while the process ran: one frozen with it is not stuck."""
        return min(self._loop.seconds_stuck(), monotonic() - self._awake_since)

    def _patience(self) -> float:
        """How many seconds a step may take before the engine counts as stuck."""
        return max(self._settings.lease_seconds, STUCK_STEPS * self._loop.longest_step_seconds)

    def _check_engine(self) -> None:
        """End the process of an engine that hangs. Its jobs are charged, as after any crash."""
        seconds_stuck, patience = self._seconds_stuck(), HUNG_TIMES * self._patience()
        if seconds_stuck > patience:
            self._on_failure(
                EngineHung(
                    f"a step has taken {seconds_stuck:.0f} s, more than {patience:.0f}; where a machine is that slow, "
                    "HEADRACE_TOKEN_BUDGET makes steps shorter and HEADRACE_LEASE_SECONDS allows for longer ones"
                )
            )

    def _keep(self, card: Card) -> None:
        if not self._is_registered:
            self._register(card)
        if self._is_due():
            self._renew()
        self._reconcile()
        with Session(self._engine) as session:
            self.num_live = max(1, workers.num_live(session, card.model, self._settings.lease_seconds))

    def _register(self, card: Card) -> None:
        process = this_process()
        values = asdict(card) | {"tokenizer_path": str(card.tokenizer_path)}
        row = Worker(id=self.worker_id, name=self._node_name, status=self.status, **asdict(process), **values)
        self.renewed_at, self._renewed_status = None, None
        # An id is drawn once, so a row that has it is ours: of a try before, whose answer was lost. The renewal finds
        # out whether it is good still.
        with suppress(IntegrityError), Session(self._engine) as session:
            workers.register(session, row)
            session.commit()
        self._is_registered = True
        log.info("registered", extra={"worker_id": str(self.worker_id), "model": card.model})

    def _is_due(self) -> bool:
        if self.renewed_at is None:
            return True
        is_time = monotonic() - self.renewed_at >= self._settings.renew_seconds - self._round_seconds
        return is_time or self._is_doubted or self.status != self._renewed_status

    def _renew(self) -> None:
        seconds_stuck = self._seconds_stuck()
        if seconds_stuck > self._patience():
            log.error("the engine is stuck; the lease is not renewed", extra={"seconds": seconds_stuck})
            return
        status, began = self.status, monotonic()
        try:
            with Session(self._engine) as session:
                self.clock_offset = workers.renew(session, self.worker_id, status, self._stats()) - time()
                session.commit()
        except workers.WorkerGone:
            self._start_over()
            return
        self.renewed_at, self._renewed_status = began, status
        self._is_doubted = False
        self._on_renewed()

    def _stats(self) -> dict[str, Any] | None:
        """What the engine tells of itself, once there is one."""
        model = self._loop.model
        return None if model is None else asdict(model.engine.stats())

    def _start_over(self) -> None:
        """The lease was lost, and others run our jobs. Drop them all and come back as a new worker."""
        held_jobs = self._held_jobs.snapshot()
        log.error("the lease was lost", extra={"worker_id": str(self.worker_id), "num_jobs": len(held_jobs)})
        for held in held_jobs:
            self._drop(held)
        self.renewed_at, self._is_registered = None, False
        self._unheld.clear()
        self.worker_id = new_id()
        self._wake.set()

    def _reconcile(self) -> None:
        """Compare the rows with what is held; held is read before the rows, which are there before a job is held."""
        before = {(held.job_id, held.claimed.attempt): held for held in self._held_jobs.snapshot()}
        with Session(self._engine) as session:
            rows = {(row.job_id, row.attempt): row for row in jobs.held(session, self.worker_id)}
        for key, held in before.items():
            row = rows.get(key)
            if row is not None and row.is_cancelled:
                self._loop.interrupt(held, Status.CANCELLED)
            elif row is None and not held.is_closed:
                self._drop(held)
        self._release_unheld(rows)

    def _release_unheld(self, rows: dict[tuple[UUID, int], Held]) -> None:
        """Hand back rows that nobody here held at three looks in a row: claims whose answer was lost."""
        held_ids = self._held_jobs.ids()
        self._unheld = {key: self._unheld.get(key, 0) + 1 for key in rows if key[0] not in held_ids}
        overdue = [key for key, rounds in self._unheld.items() if rounds > 2]
        if not overdue:
            return
        log.warning("running rows that are not held here are handed back", extra={"num_jobs": len(overdue)})
        with Session(self._engine) as session:
            may_have_tokens = {job_id: () for job_id, attempt in overdue if attempt > 1}  # of earlier attempts
            readies = jobs.release(session, self.worker_id, overdue, delivered=may_have_tokens)
            session.commit()
        self._give_back(readies)

    def _drop(self, held: HeldJob) -> None:
        """The row is not ours any more: stop computing and write nothing."""
        self._loop.interrupt(held, None)
        self._settle(held, Outcome.LOST)
