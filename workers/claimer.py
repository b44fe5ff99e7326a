"""Makes popped messages held jobs: claims the rows, opens the streams; and gives back what did not work out.

Puller thread only. It knows nothing of seats and blocks.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from db import jobs, outputs, queue, stream, workers
from db.jobs import Claimed, Ready
from db.queue import Message
from db.settings import Settings
from db.stream import Opened, StreamEnded, StreamStale
from workers.held import HeldJob
from workers.lease import Lease

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """What became of popped messages. The other jobs are somebody else's, or over: their messages are dropped."""

    claimed: list[Claimed]  # in the order of the pop, which is the order in which they are to start
    crashed: list[Ready]  # still queued: they have crashed before, and another of that kind is held
    sound: list[Ready]  # still queued: a crashed one was taken in their place, alone


class Claimer:
    """The puller's hands in both stores."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        client: redis.Redis,
        *,
        lease: Lease,
        push_front: Callable[[list[Ready]], None],
    ) -> None:
        self._model = settings.served_name
        self._key_window = settings.key_window
        self._engine = engine
        # A claim is one statement, and what is read beside it stands by itself.
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._redis = client
        self._lease = lease
        self._push_front = push_front

    def claim(self, worker_id: UUID, messages: Sequence[Message], *, may_take_crashed: bool) -> Taken:
        """Make the rows ours, or put the messages back where they were. A lost answer is the reconcile's business."""
        job_ids = list(dict.fromkeys(message.job_id for message in messages))
        try:
            with Session(self._autocommit) as session:
                rows = jobs.claim(session, worker_id, job_ids, may_take_crashed=may_take_crashed)
                claimed = {job.id: job for job in rows}
                left = [job_id for job_id in job_ids if job_id not in claimed]
                crashes = jobs.num_crashes(session, left) if left else {}
                is_gone = not claimed and workers.is_gone(session, worker_id)
        except SQLAlchemyError:
            self._push_front([self._ready(message) for message in messages])
            raise
        if is_gone:  # we were declared lost, so these are as good as when we took them
            self._lease.doubt()
            self._push_front([self._ready(message) for message in messages])
            return Taken([], [], [])
        return Taken(
            [claimed[job_id] for job_id in job_ids if job_id in claimed],
            [self._ready(message) for message in messages if crashes.get(message.job_id, 0) > 0],
            [self._ready(message) for message in messages if crashes.get(message.job_id) == 0],
        )

    def hold(
        self, worker_id: UUID, claimed: Sequence[Claimed], messages: Sequence[Message], *, began: float, waits: bool
    ) -> list[HeldJob]:
        """Open the streams. `began` is a moment before the claim, monotonic; what `waits` is computed after `begin`."""
        opened = self._open(worker_id, claimed, waits=waits)
        raw = {message.job_id: message.raw for message in messages}
        return [
            HeldJob(
                claimed=job,
                worker_id=worker_id,
                payload=json.loads(raw[job.id]),
                deadline=None if job.seconds_left is None else began + job.seconds_left,
                tokens=outputs.longer(opened[job.id].tokens, job.kept_tokens),
                num_streamed=len(opened[job.id].tokens),
                is_waiting=waits,
            )
            for job in claimed
            if job.id in opened
        ]

    def begin(self, held: HeldJob) -> bool:
        """Say in the stream that a job that waited is computed from now on. False, and it is handed back, when it was
        taken over meanwhile."""
        try:
            stream.open(self._redis, held.job_id, held.claimed.attempt, held.worker_id)
        except (StreamStale, StreamEnded):
            self._release(held.worker_id, [held.claimed])
            return False
        return True

    def give_back(self, worker_id: UUID, claimed: Sequence[Claimed]) -> None:
        """Release rows that were just claimed, to the front of their lists."""
        self._push_front(self._release(worker_id, claimed))

    def promote(self, claimed: Iterable[Claimed]) -> None:
        """Jobs left their keys' windows, so that parked ones may move up.

        One that was parked in the moment of the claim moves up with the next claim, or by the sweep.
        """
        key_ids = {job.key_id for job in claimed if job.has_parked}
        if not key_ids:
            return
        with Session(self._engine) as session:
            readies = jobs.promote(session, key_ids, key_window=self._key_window)
            session.commit()
        queue.push(self._redis, readies)

    def _open(self, worker_id: UUID, claimed: Sequence[Claimed], *, waits: bool) -> dict[UUID, Opened]:
        """What each job's earlier attempts delivered. Without Redis there is no knowing, so all are handed back.

        A stream that is closed to us means that Postgres forgot a commit, as a promoted standby may. Such a job is left
        to the sweep, and again, until its attempt is beyond the other's or the ended stream has expired.
        """
        attempts = {job.id: job.attempt for job in claimed}
        try:
            opened = stream.open_many(self._redis, attempts, worker_id, waits=waits)
        except redis.RedisError:
            self.give_back(worker_id, claimed)
            raise
        refused = [job for job in claimed if job.id not in opened]
        if refused:
            log.error("claimed jobs whose streams are closed to us are handed back", extra={"num_jobs": len(refused)})
            self._release(worker_id, refused)
        return opened

    def _release(self, worker_id: UUID, claimed: Sequence[Claimed]) -> list[Ready]:
        rows = [(job.id, job.attempt) for job in claimed]
        may_have_tokens = {job.id: job.kept_tokens for job in claimed if job.attempt > 1}
        with Session(self._engine) as session:
            readies = jobs.release(session, worker_id, rows, delivered=may_have_tokens)
            session.commit()
        return readies

    def _ready(self, message: Message) -> Ready:
        return Ready(message.job_id, self._model, message.tier, message.ready_at, message.num_blocks)
