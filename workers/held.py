"""Jobs that this worker has claimed and not yet settled, and the registry that counts them against the seats."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from time import monotonic
from typing import Any
from uuid import UUID

from db.jobs import Claimed, End
from db.models import Status
from db.stream import Token
from db.tokens import Success


class Outcome(StrEnum):
    """How a held job left this worker."""

    ENDED = "ended"  # its row has ended, by our hand
    RELEASED = "released"  # handed back, to be run again from where it is
    LOST = "lost"  # the row was somebody else's by the time we wrote


@dataclass(eq=False)
class HeldJob:
    """One claimed job on its way through the worker's threads. Each field names the thread that writes it."""

    claimed: Claimed  # frozen
    worker_id: UUID  # the id it was claimed under: with the attempt, the fence; frozen
    payload: dict[str, Any]  # its Celery message, decoded; frozen
    deadline: float | None  # monotonic seconds; frozen

    tokens: list[Token]  # delivered before, then appended by the engine thread only; others read up to its length
    num_resumed: int = field(init=False)  # tokens delivered before; frozen
    num_cached_tokens: int = 0  # engine thread
    finish_reasons: list[str | None] = field(init=False)  # of each choice, once it has ended; engine thread
    prompt_logprobs: list[Any] | None = None  # engine thread, once
    embedding: list[float] | None = None  # engine thread, once
    is_waiting: bool = False  # puller thread: held until its blocks are free, and given to nobody
    is_added: bool = False  # engine thread: the engine counts its blocks from here on
    end: End | None = None  # engine thread, once; the writer thread replaces one that Postgres refuses
    is_dropped: bool = False  # engine thread: it belongs to nobody here any more, so nothing more is written
    num_streamed: int = 0  # streamer thread
    streamed_at: float | None = None  # monotonic, of the last entry; streamer thread
    num_journaled: int = 0  # streamer thread
    is_committed: bool = False  # writer thread: the row has ended, so the stream may
    task_number: int | None = None  # hub thread: its slot in the pool, once Celery has taken it
    outcome: Outcome | None = None  # hub thread

    def __post_init__(self) -> None:
        self.num_resumed = len(self.tokens)
        self.finish_reasons = [None] * self.claimed.sampling.n

    @property
    def job_id(self) -> UUID:
        return self.claimed.id

    @property
    def sequence_id(self) -> str:
        """The job's name inside the engine. Another attempt is another sequence."""
        return f"{self.claimed.id.hex}:{self.claimed.attempt}"

    @property
    def is_late(self) -> bool:
        """Whether one of its limits has passed."""
        return self.deadline is not None and self.deadline <= monotonic()

    @property
    def num_new(self) -> int:
        """Tokens that this attempt has made."""
        return len(self.tokens) - self.num_resumed

    @property
    def is_closed(self) -> bool:
        """Whether the engine is done with it."""
        return self.is_dropped or self.end is not None

    @property
    def success(self) -> Success | None:
        """How it succeeded; None where it has not."""
        if self.end is None or self.end.status != Status.SUCCEEDED:
            return None
        return Success([reason for reason in self.finish_reasons if reason is not None], self.num_cached_tokens)

    def ended_as(
        self,
        status: Status,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> End:
        """What the row is to say: this status, with everything delivered so far."""
        has_choices = len(self.finish_reasons) > 1
        return End(
            job_id=self.claimed.id,
            attempt=self.claimed.attempt,
            worker_id=self.worker_id,
            status=status,
            finish_reason=self.finish_reasons[0] if status == Status.SUCCEEDED else None,
            text="".join(token.text for token in self.tokens),
            token_ids=[token.token_id for token in self.tokens],
            text_offsets=list(accumulate(len(token.text) for token in self.tokens)),
            logprobs=self._logprobs(),
            num_cached_tokens=self.num_cached_tokens,
            choices=[token.choice for token in self.tokens] if has_choices else None,
            finish_reasons=list(self.finish_reasons) if has_choices else None,
            prompt_logprobs=self.prompt_logprobs,
            embedding=self.embedding,
            error_code=error_code,
            error_message=error_message,
        )

    def _logprobs(self) -> list[Any] | None:
        if self.claimed.sampling.logprobs is None:
            return None
        return [token.logprobs for token in self.tokens]


@dataclass
class HeldJobs:
    """The registry: what was popped and is not settled. Every field is read and written under the lock.

    A popped message counts from the pop on, before its row is claimed: otherwise two pops in a row could overshoot.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jobs: dict[UUID, HeldJob] = field(default_factory=dict)
    _claiming: set[UUID] = field(default_factory=set)

    def __len__(self) -> int:
        with self._lock:
            return len(self._jobs) + len(self._claiming)

    def expect(self, job_ids: Iterable[UUID]) -> None:
        """Count popped messages while their rows are being claimed."""
        with self._lock:
            self._claiming.update(job_ids)

    def forget(self, job_ids: Iterable[UUID]) -> None:
        """Stop counting popped messages whose rows did not become ours."""
        with self._lock:
            self._claiming.difference_update(job_ids)

    def add(self, held: HeldJob) -> None:
        with self._lock:
            self._claiming.discard(held.job_id)
            self._jobs[held.job_id] = held

    def discard(self, held: HeldJob) -> bool:
        """Remove it; False when it was settled before, so that a job is settled exactly once."""
        with self._lock:
            if self._jobs.get(held.job_id) is not held:
                return False
            del self._jobs[held.job_id]
            return True

    def is_held(self, held: HeldJob) -> bool:
        with self._lock:
            return self._jobs.get(held.job_id) is held

    def get(self, job_id: UUID) -> HeldJob | None:
        with self._lock:
            return self._jobs.get(job_id)

    def snapshot(self) -> list[HeldJob]:
        """A copy of the claimed ones."""
        with self._lock:
            return list(self._jobs.values())

    def ids(self) -> set[UUID]:
        """Ids of the claimed and of those being claimed."""
        with self._lock:
            return self._jobs.keys() | self._claiming

    def has_crashed(self) -> bool:
        """Whether one of the claimed has crashed before: no other such job may run beside it."""
        with self._lock:
            return any(held.claimed.crashes > 0 for held in self._jobs.values())

    def is_on_trial(self) -> bool:
        """Whether a crashed one runs that has delivered nothing since: what began beside it might pay for its crash."""
        with self._lock:
            crashed = [held for held in self._jobs.values() if held.claimed.crashes and not held.is_waiting]
        return any(held.num_streamed <= held.num_resumed for held in crashed)

    def num_seats(self) -> int:
        """Seats that they take, and those being claimed, which may turn out to take more."""
        with self._lock:
            return sum(held.claimed.sampling.num_seats for held in self._jobs.values()) + len(self._claiming)

    def num_blocks_coming(self) -> int:
        """KV blocks of jobs that are on their way to the engine, and that it does not count yet."""
        with self._lock:
            jobs = self._jobs.values()
            return sum(held.claimed.num_blocks for held in jobs if not held.is_added and not held.is_waiting)
