"""The thread that writes token streams: one pipeline for all tokens of a step, off the step thread.

Jobs are marked, not queued: a mark says "this one has more than it has streamed". So a slow or absent Redis costs
nothing but latency, steps coalesce by themselves, and the buffer is the jobs' own tokens. What is to be told is in the
journal first, which outlives this process.

Telling takes processors, and where the engine computes on them it stands still meanwhile. So few streams are told of
each token as it comes, and many of several at a time.
"""

import logging
import os
from collections.abc import Callable, Collection
from time import monotonic

import redis

from db import stream
from db.stream import Append, Appended
from workers.held import HeldJob
from workers.journal import Journal
from workers.mailbox import Mailbox, now
from workers.outage import Outage
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
LONGEST_APPEND = 32  # tokens, so that readers, who get whole entries, can bound what they get
TELL_SECONDS = 0.0003  # of a processor, for one entry: here, in Redis, in the API and in the client
TELL_SHARE = 0.05  # of this machine's processors, that telling may take
NUM_PROMPT = 8  # so many streams are told of each token all the same
MOST_PAUSE_SECONDS = 0.25


class Streamer(WorkerThread):
    """Appends what held jobs have produced, then the end of those whose row has ended."""

    def __init__(
        self,
        client: redis.Redis,
        journal: Journal,
        *,
        on_stale: Callable[[HeldJob], None],
        is_ours: Callable[[HeldJob], bool | None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_stale` is told of a job that another attempt has taken over; `is_ours` asks the row, None: not now."""
        super().__init__("streamer", on_failure)
        self._redis = client
        self._journal = journal
        self._on_stale = on_stale
        self._is_ours = is_ours
        self._outage = Outage(log, "token streams wait for Redis")
        self._marked = Mailbox()
        self._num_processors = len(os.sched_getaffinity(0))

    def mark(self, jobs: Collection[HeldJob]) -> None:
        """These have tokens, or an end, that the stream does not have yet. First tokens and ends are told at once."""
        pause = pause_seconds(len(jobs), self._num_processors)

        def due(held: HeldJob) -> float:
            told_at = held.streamed_at
            return now(held) if told_at is None or held.is_closed else told_at + pause

        self._marked.put(jobs, due=due)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything marked is written. False when that took too long."""
        return self._marked.flush(timeout_seconds)

    def stop(self) -> None:
        """Give up what is not written yet: the jobs' next attempts write it, and the sweep the ends of ended ones."""
        self._marked.close(drop=True)

    def work(self) -> None:
        while jobs := self._marked.take():
            try:
                unfinished = self._write(jobs)
                self._outage.over()
            except redis.RedisError as error:
                self._outage.seen(error)
                self._marked.pause(RETRY_SECONDS)
                unfinished = jobs
            self._marked.put(unfinished)
        self._journal.close()

    def _write(self, jobs: list[HeldJob]) -> list[HeldJob]:
        """Append and end. Returns the jobs that still have something to write."""
        jobs = [held for held in jobs if not held.is_dropped]
        committed = [held for held in jobs if held.is_committed]  # read before the tokens, which are complete by then
        unfinished = self._append(jobs)
        # All of it is written, or a cancel that came too late has the pen: then the row tells all.
        written = [held for held in committed if held not in unfinished]
        stream.end_many(
            self._redis,
            {held.job_id: len(held.tokens) for held in written},
            {held.job_id: held.success for held in written if held.success is not None},
        )
        return unfinished

    def _append(self, jobs: list[HeldJob]) -> list[HeldJob]:
        appends = {held: _append_of(held) for held in jobs if len(held.tokens) > held.num_streamed}
        self._journal.write(appends)
        results = stream.append_many(self._redis, list(appends.values()))
        return [
            held
            for (held, append), result in zip(appends.items(), results, strict=True)
            if self._has_more(held, append, result)
        ]

    def _has_more(self, held: HeldJob, append: Append, result: Appended) -> bool:
        """Move on by what the script answered. Whether the job must be written again."""
        if result.status == "ok":
            held.num_streamed, held.streamed_at = append.first_index + len(append.tokens), monotonic()
            return len(append.tokens) == LONGEST_APPEND
        if result.status == "behind":
            held.num_streamed = min(result.num_tokens, len(held.tokens))
            return held.num_streamed < len(held.tokens)
        if result.status == "missing":
            return self._rewrite(held)
        if not held.is_committed:
            self._on_stale(held)
        return False

    def _rewrite(self, held: HeldJob) -> bool:
        """The stream is gone: Redis lost its data. While the row is ours, write it again from memory."""
        is_ours = held.is_committed or self._is_ours(held)
        if is_ours is None:
            self._marked.pause(RETRY_SECONDS)
            return True
        if not is_ours:
            self._on_stale(held)
            return False
        log.warning("token stream is rewritten", extra={"job_id": str(held.job_id)})
        held.num_streamed = 0
        return True


def pause_seconds(num_streams: int, num_processors: int) -> float:
    """Between two entries of a stream, when so many are told: those beyond `NUM_PROMPT` then take `TELL_SHARE`, or what
    they do at `MOST_PAUSE_SECONDS`."""
    num_slow = max(0, num_streams - NUM_PROMPT)
    return min(MOST_PAUSE_SECONDS, num_slow * TELL_SECONDS / (TELL_SHARE * num_processors))


def _append_of(held: HeldJob) -> Append:
    """What is new since the last append. The engine thread may add to the tokens meanwhile; this takes a copy."""
    return Append(
        job_id=held.job_id,
        attempt=held.claimed.attempt,
        worker_id=held.worker_id,
        first_index=held.num_streamed,
        tokens=held.tokens[held.num_streamed : held.num_streamed + LONGEST_APPEND],
    )
