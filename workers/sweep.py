"""One round of repair: what fell between Postgres and Redis, or was held by the dead, comes back. `Sweeper` runs it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

from redis import Redis, RedisError
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, workers
from db.outage import is_refusing_all
from db.settings import Settings
from workers.contact import Contact, ContactLost, is_contact_lost
from workers.control_replies import ControlReplies
from workers.expiry import Expiry
from workers.isolation import Isolation
from workers.journal import directory_of
from workers.lost_jobs import take_back
from workers.stream_ends import StreamEnds

MARGIN_SECONDS = 2.0  # a row may be this much older than a pushed one and still be on its way into the list
PAGE = 1000  # rows in one statement
Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What one round did, in jobs; a step that failed counts 0."""

    is_judging: bool  # whether leases were judged; `num_requeued` and `num_dead` are 0 otherwise
    num_expired: int  # ended past a limit, or cancelled while they waited to run again
    num_requeued: int  # taken back from lost workers
    num_dead: int
    num_promoted: int  # parked jobs that became ready
    num_restored: int  # ready jobs that had no message
    num_closed: int  # ended jobs whose streams were open

    @property
    def is_repair(self) -> bool:
        """Whether anything was put right; a parked job's turn is everyday."""
        return any((self.num_expired, self.num_requeued, self.num_dead, self.num_restored, self.num_closed))


class Sweep:
    """Every step is a guarded statement first and a message after its commit: one cut off between is the next round's.

    A step that fails does not keep the others from being done. Leases are judged only after `Contact` was unbroken.
    """

    def __init__(self, engine: Engine, redis: Redis, settings: Settings) -> None:
        self._engine = engine
        self._redis = redis
        self._lease_seconds = settings.lease_seconds
        self._key_window = settings.key_window
        self._journals = directory_of(settings)
        gap_seconds = max(settings.lease_seconds / 3, 2 * settings.sweep_seconds)
        self._contact = Contact(lease_seconds=settings.lease_seconds, gap_seconds=gap_seconds)
        self._expiry = Expiry(engine, redis, self._contact)
        self._stream_ends = StreamEnds(engine, redis)
        self._control_replies = ControlReplies(redis)
        self._taking = Isolation[UUID](log, "a lost worker's jobs cannot be taken back")
        self._restoring = Isolation[str](log, "a model's queue cannot be repaired")
        self._failing: set[str] = set()  # steps that failed in the last round: a failure is logged when it begins

    def run(self, now: float, ask: Callable[[], float] | None = None) -> Report:
        """One round at `now` (Unix seconds, Postgres clock; a jump is a gap too). Raises ContactLost.

        `ask` reads that clock again, and fails when this process may sweep no more.
        """
        self._contact.begin(now, ask)
        is_judging = self._contact.is_unbroken()
        lost = self._step("lost workers", self._take_from_lost if is_judging else list) or []
        # After the above, which brings back cancelled jobs too. Jobs that never ran expire without Redis.
        num_expired = self._step("limits of new jobs", partial(self._expiry.run, has_run=False)) or 0
        num_expired += self._step("limits of jobs that ran", partial(self._expiry.run, has_run=True)) or 0
        report = Report(
            is_judging=is_judging,
            num_expired=num_expired,
            num_requeued=sum(len(each.ready) for each in lost),
            num_dead=sum(len(each.dead) for each in lost),
            num_promoted=self._step("parked jobs", self._promote) or 0,
            num_restored=self._step("lost messages", partial(self._restore, now)) or 0,
            num_closed=self._step("open streams", self._stream_ends.run) or 0,
        )
        self._step("control replies", partial(self._control_replies.run, now))
        if report.is_repair:
            log.info("sweep repaired", extra=vars(report))
        return report

    def forget(self) -> None:
        """Contact with Postgres was lost: begin to count unbroken rounds anew."""
        self._contact.lost()

    def _step(self, name: str, act: Callable[[], Result]) -> Result | None:
        """Do one step; None when it failed."""
        try:
            result = act()
        except Exception as error:
            if is_contact_lost(error):
                raise ContactLost(str(error)) from error
            result = None
            if name not in self._failing:
                self._failing.add(name)
                trace = None if isinstance(error, RedisError) or is_refusing_all(error) else error
                log.warning("sweep step fails: %s", error, exc_info=trace, extra={"step": name})
        else:
            if name in self._failing:
                self._failing.remove(name)
                log.info("sweep step works again", extra={"step": name})
        self._contact.renew()
        return result

    def _take_from_lost(self) -> list[jobs.Lost]:
        """Requeue what workers without a live lease were running, or end it as dead."""
        with Session(self._engine) as session, session.begin():
            worker_ids = workers.lost(session, self._lease_seconds)
        take = partial(take_back, self._engine, self._redis, journals=self._journals)
        return self._taking.run(worker_ids, take)

    def _promote(self) -> int:
        with Session(self._engine) as session, session.begin():
            readies = jobs.promote(session, None, key_window=self._key_window)
        queue.push(self._redis, readies)
        return len(readies)

    def _restore(self, now: float) -> int:
        """Give ready jobs without a message a new one, in their place."""
        with Session(self._engine) as session, session.begin():
            models = workers.served_models(session)
        restored = self._restoring.run(models, lambda part: sum(self._restore_model(model, now) for model in part))
        return sum(restored)

    def _restore_model(self, model: str, now: float) -> int:
        self._clear_leftovers(model)
        # Heads before rows: a job claimed in between is then no queued row any more. Lists are in `ready_at` order, so
        # what is older than the head has no message.
        num_restored = 0
        for tier, head in queue.heads(self._redis, model).items():
            older_than = (now if head is None else head) - MARGIN_SECONDS
            num_restored += self._restore_tier(model, tier, older_than)
        return num_restored

    def _clear_leftovers(self, model: str) -> None:
        """Empty lists that nobody pops and that hold more than there are queued jobs: ended ones' messages."""
        depths = queue.depths(self._redis, model)  # before the rows: each message has its row by then
        if not any(depths.values()):
            return
        with Session(self._engine) as session:
            if workers.num_live(session, model, self._lease_seconds) > 0:
                return
            num_ready = jobs.num_ready(session, model)
        for tier, depth in depths.items():
            if depth > num_ready.get(tier, 0):
                queue.clear(self._redis, model, tier)

    def _restore_tier(self, model: str, tier: int, older_than: float) -> int:
        """Push rows older than `older_than` to the front, all at once: a queue that Redis lost comes back in order."""
        readies: list[queue.Ready] = []
        while True:
            with Session(self._engine) as session, session.begin():
                page = jobs.unqueued(session, model, tier, older_than=older_than, limit=PAGE)
            self._contact.renew()
            readies += page
            if len(page) < PAGE:
                queue.push_front(self._redis, readies)
                return len(readies)
            older_than = page[0].ready_at
