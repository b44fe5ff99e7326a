"""A Celery pool whose slots are seats in the engine's running batch. Hub thread only, but for methods that say so.

A generation is an ordinary Celery task: `on_apply` hands it to the engine and returns; when its end is durable, the
task's body runs under Celery's tracer and the callback is called, here, on Celery's own thread.
"""

import atexit
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from celery.concurrency.base import BasePool
from celery.worker import state
from kombu.asynchronous import Hub

from db.settings import get_settings
from workers.held import HeldJob, Outcome
from workers.model_plan import LoadFailed
from workers.task_slot import TaskSlot
from workers.worker import EngineWorker

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
FLUSH_SECONDS = 5.0
FLUSH_ROUNDS = 3


class EnginePool(BasePool):
    """Owns the engine worker, and the hand-over between its threads and the hub."""

    signal_safe = False
    task_join_will_block = False

    def on_start(self) -> None:
        self._hub: Hub | None = None
        self._handle: Callable[[HeldJob], None] | None = None  # None: not connected
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pulled: deque[HeldJob] = deque()  # puller thread in, hub thread out
        self._settled: deque[tuple[HeldJob, Outcome]] = deque()  # any thread in, hub thread out
        self._slots: dict[int, TaskSlot] = {}
        self._numbers = count(1)
        self._is_cold = False
        self._is_over = False
        self.worker = EngineWorker(
            get_settings(),
            name=self.options["initargs"][1],
            deliver=self._deliver,
            on_settled=self._post,
            on_failure=self._fail,
        )
        self.worker.start()

    # The hub

    def register_with_event_loop(self, hub: Hub) -> None:
        """Called at every connection. The hub is kept: after a broker error the global loop is None.

        A reader rather than `call_soon`: what a `call_soon` callback schedules waits for one more poll, up to a second.
        """
        self._hub = hub
        hub.add_reader(self._fd, self._on_wake)
        self._wake()

    def connect(self, handle: Callable[[HeldJob], None]) -> None:
        """Celery takes messages, through `handle`."""
        self._handle = handle
        self.worker.puller.set_connected(True)
        self._wake()

    def disconnect(self) -> None:
        """Celery takes none for now; what was pulled waits, or is released by a shutdown."""
        self._handle = None
        self.worker.puller.set_connected(False)

    def _on_wake(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        # Ends before beginnings: Celery never sees more active tasks than there are seats.
        while self._settled:
            self._conclude(*self._settled.popleft())
        while self._pulled and self._handle is not None:
            self._hand_over(self._handle, self._pulled.popleft())

    # From other threads

    def _wake(self) -> None:
        os.eventfd_write(self._fd, 1)

    def _deliver(self, held_jobs: list[HeldJob]) -> None:
        """Puller thread."""
        self._pulled.extend(held_jobs)
        self._wake()

    def _post(self, held: HeldJob, outcome: Outcome) -> None:
        """Any thread."""
        self._settled.append((held, outcome))
        self._wake()

    def _fail(self, error: BaseException) -> None:
        """The thread that fails: without it this is no worker, so the process ends; its supervisor starts another."""
        if isinstance(error, LoadFailed):
            log.error("the model could not be loaded: %s", error)
            state.should_stop = 1  # type: ignore[assignment]  # the exit code
            self._wake()
            return
        # As after a kill: what was running is charged with the crash, so that a poisonous job cannot do this for ever.
        log.critical("a thread of the worker died", exc_info=error)
        self.worker.writer.flush(FLUSH_SECONDS)
        logging.shutdown()
        os._exit(1)

    # Tasks

    def _hand_over(self, handle: Callable[[HeldJob], None], held: HeldJob) -> None:
        if held.outcome is not None:
            return
        try:
            handle(held)
        except Exception:
            log.exception("Celery could not take a job", extra={"job_id": str(held.job_id)})
        if held.task_number is not None:
            return
        if str(held.job_id) in state.revoked:  # before it got here
            self.worker.cancel(held)
        else:
            self.worker.set_aside(held)

    def on_apply(  # type: ignore[override]
        self,
        target: Callable[..., tuple[int, Any, float]],
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[..., None] | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> TaskSlot:
        """Take a task that `_hand_over` is handing to Celery: its job is held already."""
        assert callback is not None and accept_callback is not None and correlation_id is not None
        held = self.worker.held_jobs.get(UUID(correlation_id))
        if held is None:
            raise ValueError(f"job {correlation_id} did not come through the puller; send jobs through the API")
        slot = TaskSlot(
            next(self._numbers),
            held,
            run=partial(target, *args),
            callback=callback,
            terminate_job=self.terminate_job,
        )
        held.task_number = slot.number
        self._slots[slot.number] = slot
        accept_callback(slot.number, slot.started)
        self.worker.loop.start_job(held)
        return slot

    def _conclude(self, held: HeldJob, outcome: Outcome) -> None:
        if held.outcome is not None:
            return
        held.outcome = outcome
        if held.task_number is None:
            return
        slot = self._slots.pop(held.task_number)
        try:
            slot.conclude(outcome)
        except Exception:
            log.exception("Celery could not end a task", extra={"job_id": str(held.job_id)})

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """A revoke with terminate: cancel the job. Celery's cold shutdown comes here too: then it will be released."""
        slot = self._slots.get(pid)
        if slot is None:
            return
        if str(slot.held.job_id) in state.revoked:
            self.worker.cancel(slot.held)
        else:
            self._is_cold = True

    # Shutdown

    def on_stop(self) -> None:
        """Drain: finish for `drain_seconds` with the hub running, so that events flow, then hand the rest back."""
        if self._is_over:
            return
        self._is_over = True
        self.worker.begin_drain()
        if not self._is_cold:
            self._run_hub(self.worker.settings.drain_seconds)
        self.worker.release()
        self._on_wake()
        self._flush_events()
        if not self.worker.stop():
            # The engine thread is in the middle of a library's C++ code, while it loads a model for instance. Python
            # would cut it off there on its way out, which aborts the process: leave by the short way instead.
            atexit.register(os._exit, state.should_stop or 0)

    def on_terminate(self) -> None:
        self._is_cold = True
        self.on_stop()

    def _run_hub(self, seconds: float) -> None:
        """Run Celery's event loop until nothing is held and Celery knows, or the time is up."""
        if self._hub is None:
            return
        deadline, loop = monotonic() + seconds, self._hub.create_loop()
        self._hub.call_later(seconds, self._wake)
        while (self._slots or self._settled) and not self._is_cold and monotonic() < deadline:
            try:
                next(loop)
            except StopIteration:
                loop = self._hub.create_loop()
            except Exception as error:  # the broker is away; the jobs go on without it
                log.warning("while draining: %r", error)
                sleep(POLL_SECONDS)
                self._on_wake()

    def _flush_events(self) -> None:
        """A few rounds of the loop, for what the last callbacks have scheduled."""
        if self._hub is None or self._is_cold:
            return
        loop = self._hub.create_loop()
        for _ in range(FLUSH_ROUNDS):
            self._wake()  # or the poll would wait a second for news
            try:
                next(loop)
            except Exception as error:
                log.warning("the last events were not sent: %r", error)
                return

    @property
    def num_processes(self) -> int:
        return self.worker.settings.max_num_seqs

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()  # type: ignore[misc]
        return info | self.worker.info()
