"""The thread that takes jobs: pops the tier lists by aged order, claims the rows, opens the streams, passes them on.

It asks for what the engine can start now and no more, and for nothing while either store is out of reach.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from db import queue
from db.jobs import Claimed, Ready
from db.queue import Message, Waiter
from db.settings import TIERS, Settings
from workers.claimer import Claimer
from workers.engine.config import blocks_needed
from workers.held import HeldJob, HeldJobs
from workers.lease import Lease
from workers.loop import EngineLoop
from workers.outage import Outage
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0  # a wake-up may be lost; the lists are looked at again after this
RETRY_SECONDS = 0.5
STOP_SECONDS = 10.0  # a pull under way is waited for, but not for as long as a stuck Postgres may take


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
        hand_back: Callable[[list[HeldJob]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`deliver` takes jobs that are ready to be handed to Celery; `push_front` what must wait in its list again;
        `hand_back` jobs that another worker may have room for."""
        super().__init__("puller", on_failure)
        self._settings = settings
        self._redis = client
        self._held_jobs = held_jobs
        self._loop = loop
        self._lease = lease
        self._claimer = Claimer(settings, engine, client, lease=lease, push_front=push_front)
        self._deliver = deliver
        self._push_front = push_front
        self._hand_back = hand_back
        self._outage = Outage(log, "no jobs are taken")
        self._wake = threading.Event()
        self._is_stopping = False  # the stopping thread, once
        self._is_connected = False  # hub thread: Celery's consumer runs, so what is delivered is taken
        self.tiers = frozenset(range(len(TIERS)))  # hub thread: the lists that are read
        self._num_pops = 0  # this thread
        self._waiting: HeldJob | None = None  # this thread: the one job that is held until it fits
        self._crashed: dict[UUID, Ready] = {}  # this thread: messages put aside while another crashed job is held

    def wake(self) -> None:
        """Something changed that may allow a pull: a message, a free seat, a lease."""
        self._wake.set()

    def set_connected(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        self._wake.set()

    def turn(self, tier: int, is_on: bool) -> None:
        """Begin or cease to take jobs of a tier."""
        self.tiers = self.tiers | {tier} if is_on else self.tiers - {tier}
        self._wake.set()

    def stop(self) -> None:
        """Take nothing more: what a pull under way still claims it hands back itself. Waits for it, but not long."""
        self._is_stopping = True
        self._wake.set()
        self.wait_stopped(STOP_SECONDS)

    def wait_stopped(self, timeout_seconds: float) -> None:
        """Wait for the pull under way, after `stop`."""
        if self.is_alive():
            self.join(timeout_seconds)

    def work(self) -> None:
        while not self._is_stopping:
            try:
                wait_seconds = 0.0 if self.round() else IDLE_SECONDS
                self._outage.over()
            except (redis.RedisError, SQLAlchemyError) as error:
                self._outage.seen(error)
                wait_seconds = RETRY_SECONDS
            self._wake.wait(wait_seconds)
            self._wake.clear()
        self._return_crashed()

    def round(self) -> bool:
        """Start what waited and fits by now, then pull. Whether there may be more to take. Raises what stores raise."""
        if not self._is_able():
            return False
        self._see_to_waiting()
        if self._crashed and not self._held_jobs.has_crashed():
            self._return_crashed()
        if self._loop.starved:
            self._hand_back([held for held in self._loop.starved if self._held_jobs.is_held(held)])
        if self._held_jobs.is_on_trial():
            return False
        return self.pull() if self._num_seats() > 0 else self._pull_better()

    def _is_able(self) -> bool:
        return self._is_connected and self._loop.model is not None and self._lease.is_fresh()

    def _num_seats(self) -> int:
        return self._settings.max_num_seqs - self._held_jobs.num_seats()

    def _num_blocks(self) -> int:
        assert self._loop.model is not None
        return max(0, self._loop.model.engine.num_free_blocks - self._held_jobs.num_blocks_coming())

    def _waiters(self) -> list[Waiter]:
        """Held jobs that wait for blocks: here, or in the engine, where they had to give way or have not begun yet."""
        waiting = [*self._loop.waiting, *([] if self._waiting is None else [self._waiting])]
        return [Waiter(held.claimed.tier, held.claimed.ready_at, held.claimed.num_blocks) for held in waiting]

    def _pull_better(self) -> bool:
        """With all seats taken, take one job of a tier for which one that runs would give way."""
        assert self._loop.model is not None
        if any(not held.is_added for held in self._held_jobs.snapshot()):
            return False  # one at a time: the engine has yet to find its place for the last
        engine = self._loop.model.engine
        blocks = {tier: engine.num_blocks_for(tier) for tier in self.tiers}
        better = frozenset(tier for tier, num_blocks in blocks.items() if num_blocks)
        return bool(better) and self.pull(tiers=better, seats=1, blocks=min(blocks[tier] for tier in better))

    def pull(self, *, tiers: frozenset[int] | None = None, seats: int | None = None, blocks: int = 0) -> bool:
        """One pop and what follows. Whether there may be more to take.

        Of all tiers that are read, for the free seats; or of these `tiers`, for seats and blocks beside the free ones.
        """
        num_seats = self._num_seats() if seats is None else seats
        popped = queue.pop(
            self._redis,
            model=self._settings.served_name,
            now=self._lease.now(),
            policy=self._settings.queue_policy,
            threshold=self._settings.aging_threshold_seconds,
            boost=self._settings.aging_boost,
            seats=num_seats,
            blocks=self._num_blocks() + blocks,
            live_workers=self._lease.num_live,
            pops=self._num_pops,
            waiters=self._waiters(),
            tiers=self.tiers if tiers is None else tiers,
        )
        self._num_pops += len(popped.messages)
        if not popped.messages:
            return False
        self._take(popped.messages, num_seats)
        return popped.depth > len(popped.messages)

    def _take(self, messages: Sequence[Message], num_seats: int) -> None:
        worker_id, began = self._lease.worker_id, monotonic()
        may_take_crashed = not self._held_jobs.has_crashed()
        job_ids = {message.job_id for message in messages}
        self._held_jobs.expect(job_ids)
        try:
            taken = self._claimer.claim(worker_id, messages, may_take_crashed=may_take_crashed)
            self._crashed.update((ready.job_id, ready) for ready in taken.crashed)
            if taken.sound:
                self._push_front(taken.sound)
            if self._is_stopping:
                self._claimer.give_back(worker_id, taken.claimed)
                return
            waits = not all(message.fits for message in messages)  # such a one comes alone
            seated, left = _seat(taken.claimed, num_seats)
            if left:
                self._claimer.give_back(worker_id, left)
            held_jobs = self._claimer.hold(worker_id, seated, messages, began=began, waits=waits)
            for held in held_jobs:
                self._held_jobs.add(held)
        finally:
            self._held_jobs.forget(job_ids)
        if waits and held_jobs:
            [self._waiting] = held_jobs
            self._see_to_waiting()
        else:
            self._deliver(held_jobs)
        self._claimer.promote(taken.claimed)

    def _see_to_waiting(self) -> None:
        """Start the job that waits for blocks once the engine would run it at once."""
        held = self._waiting
        if held is None:
            return
        if held.is_closed or not self._held_jobs.is_held(held):
            self._waiting = None
        elif held.is_late:
            self._loop.expire(held)
        elif self._has_room(held):
            is_ours = self._claimer.begin(held)
            self._waiting, held.is_waiting = None, False
            if is_ours:
                self._deliver([held])
            else:
                self._held_jobs.discard(held)

    def _has_room(self, held: HeldJob) -> bool:
        """As the engine admits: seats, room for the tokens so far and a margin for those that run.

        Alone, it always runs.
        """
        if len(self._held_jobs) == 1:
            return True
        if self._num_seats() < 0:  # its own are among those that are held
            return False
        assert self._loop.model is not None
        config = self._loop.model.engine.config
        num_choices = held.claimed.sampling.num_seats
        num_delivered = -(-len(held.tokens) // num_choices)  # of each
        num_needed = blocks_needed(
            len(held.claimed.prompt_token_ids), num_delivered, config.block_size, num_choices=num_choices
        )
        num_before = sum(other.claimed.num_blocks for other in self._loop.waiting)
        return num_needed + config.num_high_watermark_blocks + num_before <= self._num_blocks()

    def _return_crashed(self) -> None:
        """Put the messages back that were put aside. Should that fail, the sweep does it."""
        readies, self._crashed = list(self._crashed.values()), {}
        if readies:
            self._push_front(readies)


def _seat(claimed: list[Claimed], num_seats: int) -> tuple[list[Claimed], list[Claimed]]:
    """Those that have seats, and the first that is short of some, which waits in the engine; and those behind it.

    How many a job takes is in its row: no message says it.
    """
    for index, job in enumerate(claimed):
        if num_seats <= 0:
            return claimed[:index], claimed[index:]
        num_seats -= job.sampling.num_seats
    return claimed, []
