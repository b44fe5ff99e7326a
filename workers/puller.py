"""The thread that takes jobs: pops the tier lists by aged order, claims the rows, opens the streams, passes them on.

It asks for what the engine can start now and no more, and for nothing while either store is out of reach.
"""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, time
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.jobs import Claimed, Ready
from db.queue import Message
from db.settings import Settings
from db.stream import Opened, StreamEnded, StreamStale
from workers.held import HeldJob, HeldJobs
from workers.lease import Lease
from workers.loop import EngineLoop
from workers.outage import Outage
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0  # a wake-up may be lost; the lists are looked at again after this
RETRY_SECONDS = 0.5


class Puller(WorkerThread):
    """Turns credit into held jobs."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        client: redis.Redis,
        *,
        held_jobs: HeldJobs,
        loop: EngineLoop,
        lease: Lease,
        deliver: Callable[[list[HeldJob]], None],
        push_front: Callable[[list[Ready]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`deliver` takes jobs that are ready to be handed to Celery; `push_front` what must wait in its list again."""
        super().__init__("puller", on_failure)
        self._settings = settings
        self._model = settings.served_name
        self._engine = engine
        self._redis = client
        self._held_jobs = held_jobs
        self._loop = loop
        self._lease = lease
        self._deliver = deliver
        self._push_front = push_front
        self._outage = Outage(log, "no jobs are taken")
        self._wake = threading.Event()
        self._is_stopping = False  # the stopping thread, once
        self._is_connected = False  # hub thread: Celery's consumer runs, so what is delivered is taken
        self._num_pops = 0  # this thread

    def wake(self) -> None:
        """Something changed that may allow a pull: a message, a free seat, a lease."""
        self._wake.set()

    def set_connected(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        self._wake.set()

    def stop(self) -> None:
        """Take nothing more; returns when the pull under way is over."""
        self._is_stopping = True
        self._wake.set()
        if self.is_alive():
            self.join(timeout=10)

    def work(self) -> None:
        while not self._is_stopping:
            try:
                wait_seconds = IDLE_SECONDS
                if self.may_pull():
                    wait_seconds = 0.0 if self.pull() else IDLE_SECONDS
                    self._outage.over()
            except (redis.RedisError, SQLAlchemyError) as error:
                self._outage.seen(error)
                wait_seconds = RETRY_SECONDS
            self._wake.wait(wait_seconds)
            self._wake.clear()

    def may_pull(self) -> bool:
        """A sequence that waits in the engine has first claim on what becomes free, so nothing is taken beside it."""
        model = self._loop.model
        return (
            self._is_connected
            and model is not None
            and model.engine.num_waiting == 0
            and self._lease.is_fresh()
            and self._num_seats() > 0
        )

    def _num_seats(self) -> int:
        return self._settings.max_num_seqs - len(self._held_jobs)

    def _num_blocks(self) -> int:
        assert self._loop.model is not None
        return self._loop.model.engine.num_free_blocks - self._held_jobs.num_blocks_coming()

    def pull(self) -> bool:
        """One pop and what follows. Whether there may be more to take."""
        popped = queue.pop(
            self._redis,
            model=self._model,
            now=time() + self._lease.clock_offset,
            policy=self._settings.queue_policy,
            threshold=self._settings.aging_threshold_seconds,
            boost=self._settings.aging_boost,
            seats=self._num_seats(),
            blocks=max(0, self._num_blocks()),
            live_workers=self._lease.num_live,
            pops=self._num_pops,
        )
        self._num_pops += len(popped.messages)
        if not popped.messages:
            return False
        self._take(popped.messages)
        return popped.depth > len(popped.messages)

    def _take(self, messages: Sequence[Message]) -> None:
        job_ids = {message.job_id for message in messages}
        self._held_jobs.expect(job_ids)
        try:
            worker_id, began = self._lease.worker_id, monotonic()
            claimed = self._claim(worker_id, messages)
            opened = self._open(worker_id, claimed)
            raw = {message.job_id: message.raw for message in messages}
            held_jobs = [
                HeldJob(
                    claimed=job,
                    worker_id=worker_id,
                    payload=json.loads(raw[job.id]),
                    deadline=None if job.seconds_left is None else began + job.seconds_left,
                    tokens=opened[job.id].tokens,
                    num_streamed=len(opened[job.id].tokens),
                )
                for job in claimed
                if job.id in opened
            ]
            for held in held_jobs:
                self._held_jobs.add(held)
        finally:
            self._held_jobs.forget(job_ids)
        self._deliver(held_jobs)
        self._promote({job.key_id for job in claimed})

    def _claim(self, worker_id: UUID, messages: Sequence[Message]) -> list[Claimed]:
        """Make the rows ours, or put the messages back where they were. A lost answer is the reconcile's business."""
        try:
            with Session(self._engine) as session:
                claimed = {job.id: job for job in jobs.claim(session, worker_id, [each.job_id for each in messages])}
                session.commit()
                is_gone = not claimed and workers.is_gone(session, worker_id)
        except SQLAlchemyError:
            self._push_front([self._ready(message) for message in messages])
            raise
        if is_gone:  # we were declared lost, so these are as good as when we took them
            self._lease.doubt()
            self._push_front([self._ready(message) for message in messages])
        # In the order of the pop, which is the order in which they are to start.
        return [claimed[job_id] for job_id in dict.fromkeys(each.job_id for each in messages) if job_id in claimed]

    def _open(self, worker_id: UUID, claimed: Sequence[Claimed]) -> dict[UUID, Opened]:
        """What each job's earlier attempts delivered. Without Redis there is no knowing, so all are handed back.

        A stream that is closed to us means that Postgres forgot a commit, as a promoted standby may. Such a job is left
        to the sweep, and again, until its attempt is beyond the other's or the ended stream has expired.
        """
        opened: dict[UUID, Opened] = {}
        try:
            for job in claimed:
                with suppress(StreamStale, StreamEnded):
                    opened[job.id] = stream.open(self._redis, job.id, job.attempt, worker_id)
        except redis.RedisError:
            self._push_front(self._release(worker_id, claimed))
            raise
        refused = [job for job in claimed if job.id not in opened]
        if refused:
            log.error("claimed jobs whose streams are closed to us are handed back", extra={"num_jobs": len(refused)})
            self._release(worker_id, refused)
        return opened

    def _release(self, worker_id: UUID, claimed: Sequence[Claimed]) -> list[Ready]:
        with Session(self._engine) as session:
            readies = jobs.release(session, worker_id, [(job.id, job.attempt) for job in claimed])
            session.commit()
        return readies

    def _promote(self, key_ids: set[UUID]) -> None:
        """Jobs left the keys' windows, so their parked ones may move up."""
        if not key_ids:
            return
        with Session(self._engine) as session:
            readies = jobs.promote(session, key_ids, key_window=self._settings.key_window)
            session.commit()
        queue.push(self._redis, readies)

    def _ready(self, message: Message) -> Ready:
        return Ready(message.job_id, self._model, message.tier, message.ready_at, message.num_blocks)
