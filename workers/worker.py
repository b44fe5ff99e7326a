"""The engine worker: its threads, wired together, without Celery. `workers/pool.py` shows it to Celery as a pool.

puller -> deliver -> [Celery, hub thread] -> start -> engine loop -> streamer
                                                                  -> writer -> settle -> [Celery, hub thread]
"""

import gc
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import redis
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from db import jobs, queue
from db.jobs import Ready
from db.models import Status
from db.session import STATEMENT_SECONDS, make_engine, make_redis
from db.settings import Settings
from workers.held import HeldJob, HeldJobs, Outcome
from workers.journal import Journal, directory_of
from workers.lease import Lease
from workers.listener import Listener
from workers.loading import LoadedModel, load
from workers.loop import EngineLoop
from workers.lost_jobs import clear_journals
from workers.predecessor import free_predecessors
from workers.puller import Puller
from workers.pulse import Pulse
from workers.streamer import Streamer
from workers.writer import Writer

log = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0


class EngineWorker:
    """Owns the threads. `start` and `stop` are called by Celery's main thread; the callbacks by the threads named."""

    def __init__(
        self,
        settings: Settings,
        *,
        name: str,
        deliver: Callable[[list[HeldJob]], None],
        on_settled: Callable[[HeldJob, Outcome], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`deliver` (puller thread) takes new jobs, `on_settled` (any thread) jobs that left, `on_failure` (the
        thread it befell) what no thread survives."""
        self.settings = settings
        self.held_jobs = HeldJobs()
        self._on_settled = on_settled
        self._engine = make_engine(settings)
        self._redis = make_redis(settings)
        self._journals = directory_of(settings)
        self.streamer = self._make_streamer(on_failure)
        self.writer = Writer(self._engine, on_written=self._on_written, on_failure=on_failure)
        self.loop = EngineLoop(
            self._load,
            streamer=self.streamer,
            writer=self.writer,
            on_ready=self._on_ready,
            on_failure=on_failure,
        )
        self.lease = self._make_lease(name, on_failure)
        self.puller = self._make_puller(deliver, on_failure)
        self.pulse = Pulse(settings.lease_seconds, on_failure=on_failure)
        self.listener = self._make_listener(on_failure)

    def _make_streamer(self, on_failure: Callable[[BaseException], None]) -> Streamer:
        return Streamer(
            self._redis,
            Journal(self._journals, self.held_jobs),
            on_stale=self._drop,
            is_ours=self._is_ours,
            on_failure=on_failure,
        )

    def _make_lease(self, name: str, on_failure: Callable[[BaseException], None]) -> Lease:
        return Lease(
            self.settings,
            self._engine,
            name=name,
            held_jobs=self.held_jobs,
            loop=self.loop,
            settle=self.settle,
            free_predecessors=partial(free_predecessors, self._engine, self._redis, self._journals),
            give_back=self._push_front,
            on_renewed=self._wake_puller,
            on_failure=on_failure,
        )

    def _make_puller(
        self, deliver: Callable[[list[HeldJob]], None], on_failure: Callable[[BaseException], None]
    ) -> Puller:
        return Puller(
            self.settings,
            self._engine,
            self._redis,
            held_jobs=self.held_jobs,
            loop=self.loop,
            lease=self.lease,
            deliver=deliver,
            push_front=self._push_front,
            hand_back=self._hand_back,
            on_failure=on_failure,
        )

    def _make_listener(self, on_failure: Callable[[BaseException], None]) -> Listener:
        return Listener(
            self._redis,
            model=self.settings.served_name,
            lease=self.lease,
            on_wake=self.puller.wake,
            on_cancel=self._cancel_id,
            on_failure=on_failure,
        )

    def start(self) -> None:
        for thread in (self.pulse, self.streamer, self.writer, self.lease, self.loop, self.puller, self.listener):
            thread.start()

    def cancel(self, held: HeldJob) -> None:
        """End the job as cancelled, with what it has delivered."""
        self.loop.interrupt(held, Status.CANCELLED)

    def settle(self, held: HeldJob, outcome: Outcome) -> None:
        """The job is off our hands: tell Celery, free its seat. Once per job, whoever is first; any thread."""
        # Celery hears of it before the seat is free, so that it never sees more tasks than there are seats.
        if self.held_jobs.is_held(held):
            self._on_settled(held, outcome)
        if self.held_jobs.discard(held):
            self.puller.wake()

    def set_aside(self, held: HeldJob) -> None:
        """Hold a job no longer. The lease's next rounds find its row and hand it back: in seconds, not at once."""
        self.loop.interrupt(held, None)
        self.settle(held, Outcome.RELEASED)

    def begin_drain(self) -> None:
        """Take no more jobs and hand back those that Celery was not given yet; those that run go on."""
        self.puller.stop()
        self.lease.set_status("draining")
        self._hand_back([held for held in self.held_jobs.snapshot() if held.task_number is None])
        log.info("draining", extra={"num_jobs": len(self.held_jobs)})

    def release(self) -> None:
        """Hand back what is still held, and let nothing be claimed from here on."""
        self.puller.wait_stopped(STATEMENT_SECONDS)  # a claim that Postgres was asked for may take so long
        self._hand_back(self.held_jobs.snapshot())
        self.writer.flush(FLUSH_SECONDS)

    def _hand_back(self, held_jobs: list[HeldJob]) -> None:
        """Release jobs with what they have delivered, uncharged and to the front of their lists."""
        if not held_jobs:
            return
        for held in held_jobs:
            self.loop.interrupt(held, None)
        self.loop.flush(FLUSH_SECONDS)
        self.streamer.flush(FLUSH_SECONDS)
        released = [held for held in held_jobs if held.end is None]
        try:
            self._push_front(self._release_rows(released))
        except SQLAlchemyError as error:
            log.error("jobs could not be handed back; their lease runs out: %s", error)
        for held in released:
            self.settle(held, Outcome.RELEASED)

    def stop(self) -> bool:
        """End the threads. What is not settled now is another worker's. False when the engine thread goes on."""
        self.loop.stop()
        self.writer.stop()
        self.streamer.flush(FLUSH_SECONDS)
        self.streamer.stop()
        self.listener.stop()
        self.lease.stop()
        self._clear_journals()
        self.pulse.stop()
        self._engine.dispose()
        if self.loop.model is not None:
            self.loop.join(FLUSH_SECONDS)
        return not self.loop.is_alive()

    def info(self) -> dict[str, Any]:
        """For `inspect stats` and Flower's pool page."""
        model = self.loop.model
        info = {"status": self.lease.status, "model": self.settings.served_name, "held": len(self.held_jobs)}
        if model is None:
            return info
        return info | asdict(model.engine.stats())

    def _clear_journals(self) -> None:
        """Ours goes too, unless a job could not be handed back: then the sweep may need it."""
        try:
            clear_journals(self._engine, self._journals)
        except SQLAlchemyError as error:
            log.warning("the journal is left to a successor: %s", error)

    def _load(self) -> LoadedModel:
        return load(self.settings, on_card=self.lease.announce, clock=self.lease.now)

    def _on_ready(self) -> None:
        """Engine thread: the model is loaded, so jobs may come."""
        log.info("the model is ready", extra={"model": self.settings.served_name})
        gc.freeze()  # torch and the model never go: a collection that walked them would hold up a step
        self.lease.set_status("ready")
        self.puller.wake()

    def _wake_puller(self) -> None:
        self.puller.wake()

    def _on_written(self, held: HeldJob, is_ours: bool) -> None:
        """Writer thread: the end is durable, or the row was somebody else's."""
        if not is_ours:
            log.warning("an end came too late", extra={"job_id": str(held.job_id), "attempt": held.claimed.attempt})
            self.settle(held, Outcome.LOST)
            return
        assert held.end is not None
        log.info(
            "job ended",
            extra={"job_id": str(held.job_id), "status": held.end.status, "num_output_tokens": len(held.tokens)},
        )
        held.is_committed = True
        self.streamer.mark([held])
        self.settle(held, Outcome.ENDED)

    def _drop(self, held: HeldJob) -> None:
        """Streamer thread: another attempt has the stream, so the row is not ours either."""
        if held.end is None:  # else the writer is about to find out which of the two came first
            self.loop.interrupt(held, None)
            self.settle(held, Outcome.LOST)

    def _is_ours(self, held: HeldJob) -> bool | None:
        """Streamer thread: whether the row still says so; None while Postgres cannot be asked."""
        try:
            with Session(self._engine) as session:
                rows = jobs.held(session, held.worker_id)
        except SQLAlchemyError:
            return None
        return any(row.job_id == held.job_id and row.attempt == held.claimed.attempt for row in rows)

    def _cancel_id(self, job_id: UUID) -> None:
        """Listener thread: a client's cancel. An unknown id is a job that has left."""
        held = self.held_jobs.get(job_id)
        if held is not None:
            self.cancel(held)

    def _release_rows(self, held_jobs: list[HeldJob]) -> list[Ready]:
        by_worker: dict[UUID, list[tuple[UUID, int]]] = defaultdict(list)
        for held in held_jobs:
            by_worker[held.worker_id].append((held.job_id, held.claimed.attempt))
        delivered = {held.job_id: held.tokens for held in held_jobs if held.tokens}
        with Session(self._engine) as session:
            readies = [
                jobs.release(session, worker_id, rows, delivered=delivered) for worker_id, rows in by_worker.items()
            ]
            session.commit()
        return list(chain.from_iterable(readies))

    def _push_front(self, readies: list[Ready]) -> None:
        """Put released jobs where they were; without Redis the sweep does."""
        try:
            queue.push_front(self._redis, readies)
        except redis.RedisError as error:
            log.warning("handed-back jobs wait for the sweep: %s", error, extra={"num_jobs": len(readies)})
