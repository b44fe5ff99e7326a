"""One round of repair: what fell between Postgres and Redis, or was held by the dead, comes back. `Sweeper` runs it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.settings import Settings
from db.stream import Token

MARGIN_SECONDS = 2.0  # a row may be this much older than a pushed one and still be on its way into the list
PAGE = 1000  # rows in one statement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What one round did, in jobs."""

    is_judging: bool  # whether leases were judged; `num_requeued` and `num_dead` are 0 otherwise
    num_expired: int  # ended past a limit, or cancelled while they waited to run again
    num_requeued: int  # taken back from lost workers
    num_dead: int
    num_promoted: int  # parked jobs that became ready
    num_restored: int  # ready jobs that had no message


class Sweep:
    """Every step is a guarded statement first and a message after its commit: one cut off between is the next round's.

    Leases are judged only after this sweep's own rounds were unbroken for one lease. When Postgres was away, or this
    process slept, the workers may have been unable to renew, and would be declared lost while they live.
    """

    def __init__(self, engine: Engine, redis: Redis, settings: Settings) -> None:
        self._engine = engine
        self._redis = redis
        self._lease_seconds = settings.lease_seconds
        self._key_window = settings.key_window
        # A gap between rounds that an outage long enough to cost somebody a lease could hide in.
        self._gap_seconds = max(settings.lease_seconds / 3, 2 * settings.sweep_seconds)
        self._unbroken_since: float | None = None  # as `_last_round`, of the first round without a gap since
        self._last_round: float | None = None  # Postgres clock

    def run(self, now: float) -> Report:
        """One round at `now` (Unix seconds, Postgres clock; a jump is a gap too). Raises when a store is away."""
        is_judging = self._is_unbroken(now)
        lost = self._take_from_lost() if is_judging else jobs.Lost([], [])
        num_expired = self._expire()  # after the above, which brings back cancelled jobs too
        num_promoted = self._promote()
        report = Report(
            is_judging=is_judging,
            num_expired=num_expired,
            num_requeued=len(lost.ready),
            num_dead=len(lost.dead),
            num_promoted=num_promoted,
            num_restored=self._restore(now),
        )
        if num_expired or lost.ready or lost.dead or report.num_restored:
            log.info("sweep repaired", extra=vars(report))
        return report

    def forget(self) -> None:
        """Contact with Postgres was lost: begin to count unbroken rounds anew."""
        self._unbroken_since = None

    def _is_unbroken(self, now: float) -> bool:
        is_gap = self._last_round is None or not 0 <= now - self._last_round <= self._gap_seconds
        if is_gap or self._unbroken_since is None:
            self._unbroken_since = now
        self._last_round = now
        return now - self._unbroken_since >= self._lease_seconds

    def _expire(self) -> int:
        """End queued jobs that are past a limit, or that a client cancelled after a run of theirs was cut short."""
        num_expired = 0
        while True:
            delivered = Delivered(self._redis)
            with Session(self._engine) as session, session.begin():
                ended = jobs.expire_due(session, read_tokens=delivered.read, limit=PAGE)
            self._end_streams(ended, delivered.num_tokens)
            num_expired += len(ended)
            if len(ended) < PAGE:
                return num_expired

    def _take_from_lost(self) -> jobs.Lost:
        """Requeue what workers without a live lease were running, or end it as dead."""
        delivered = Delivered(self._redis)
        with Session(self._engine) as session, session.begin():
            worker_ids = workers.lost(session, self._lease_seconds)
            num_tokens = stream.num_tokens_many(self._redis, jobs.running_of(session, worker_ids))
            lost = jobs.requeue_lost(session, worker_ids, num_tokens, read_tokens=delivered.read)
        queue.push_front(self._redis, lost.ready)
        self._end_streams(lost.dead, delivered.num_tokens)
        return lost

    def _promote(self) -> int:
        with Session(self._engine) as session, session.begin():
            readies = jobs.promote(session, None, key_window=self._key_window)
        queue.push(self._redis, readies)
        return len(readies)

    def _restore(self, now: float) -> int:
        """Give ready jobs without a message a new one, in their place."""
        with Session(self._engine) as session, session.begin():
            models = workers.served_models(session)
        return sum(self._restore_model(model, now) for model in models)

    def _restore_model(self, model: str, now: float) -> int:
        # Heads before rows: a job claimed in between is then no queued row any more. Lists are in `ready_at` order, so
        # what is older than the head has no message.
        num_restored = 0
        for tier, head in queue.heads(self._redis, model).items():
            older_than = (now if head is None else head) - MARGIN_SECONDS
            num_restored += self._restore_tier(model, tier, older_than)
        return num_restored

    def _restore_tier(self, model: str, tier: int, older_than: float) -> int:
        """Push rows older than `older_than` to the front, all at once: a queue that Redis lost comes back in order."""
        readies: list[queue.Ready] = []
        while True:
            with Session(self._engine) as session, session.begin():
                page = jobs.unqueued(session, model, tier, older_than=older_than, limit=PAGE)
            readies += page
            if len(page) < PAGE:
                queue.push_front(self._redis, readies)
                return len(readies)
            older_than = page[0].ready_at

    def _end_streams(self, job_ids: Sequence[UUID], num_tokens: Callable[[UUID], int]) -> None:
        """Tell readers now; without this they would find the end in the row, seconds later."""
        for job_id in job_ids:
            stream.end(self._redis, job_id, num_tokens(job_id))


class Delivered:
    """The tokens that jobs had delivered when their streams were fenced, read while their rows are being ended."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._num_tokens: dict[UUID, int] = {}

    def read(self, job_id: UUID) -> Sequence[Token]:
        """Fence a job's stream and return what is in it."""
        tokens = stream.fence(self._redis, job_id)
        self._num_tokens[job_id] = len(tokens)
        return tokens

    def num_tokens(self, job_id: UUID) -> int:
        """How many tokens `read` found; 0 for a job it was not asked for."""
        return self._num_tokens.get(job_id, 0)
