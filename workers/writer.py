"""The thread that ends jobs: terminal states are committed in batches, and only then told to anybody.

A commit that fails because Postgres is away is tried again until it is back; the ends wait in memory meanwhile, and no
more than the seats can wait. An end that Postgres refuses as such is replaced by a failure that says so.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs
from db.jobs import End
from db.models import Status
from db.outage import is_away
from workers.held import HeldJob
from workers.mailbox import Mailbox
from workers.outage import Outage
from workers.thread import WorkerThread

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
NOT_STORED = "output_not_stored"


class Writer(WorkerThread):
    """Commits the ends of held jobs, in the order in which they came."""

    def __init__(
        self,
        engine: Engine,
        *,
        on_written: Callable[[HeldJob, bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_written` is called on this thread once a job's end is durable; False: its row was no longer ours."""
        super().__init__("writer", on_failure)
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")  # ends are one statement
        self._on_written = on_written
        self._outage = Outage(log, "ends wait for Postgres")
        self._waiting = Mailbox()

    def put(self, held: HeldJob) -> None:
        """Commit `held.end`, soon."""
        self._waiting.put([held])

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until every end is committed. False when that took too long."""
        return self._waiting.flush(timeout_seconds)

    def stop(self) -> None:
        """Give up what cannot be committed now: its rows are running, and another worker will end them."""
        self._waiting.close()

    def work(self) -> None:
        while batch := self._waiting.take():
            self._commit(batch)

    def _commit(self, batch: list[HeldJob], *, is_retry: bool = False) -> None:
        """Commit the batch, however long it takes. `is_retry`: it may be committed already, by a try without answer."""
        ends, retry_seconds = {held: _end_of(held) for held in batch}, FIRST_RETRY_SECONDS
        while True:
            try:
                written = self._finish(list(ends.values()), is_retry)
                self._outage.over()
                break
            except Exception as error:
                if not is_away(error):
                    self._commit_singly(batch, error, is_retry)
                    return
                self._outage.seen(error)
            if self._waiting.pause(retry_seconds):
                return
            retry_seconds, is_retry = min(2 * retry_seconds, LAST_RETRY_SECONDS), True
        for held in batch:
            self._on_written(held, held.job_id in written)

    def _commit_singly(self, batch: list[HeldJob], error: Exception, is_retry: bool) -> None:
        """One end of the batch is unacceptable. Find it, and end its job with the reason instead."""
        if len(batch) > 1:
            for held in batch:
                self._commit([held], is_retry=is_retry)
            return
        [held] = batch
        log.error("an end could not be written", exc_info=error, extra={"job_id": str(held.job_id)})
        if _end_of(held).error_code == NOT_STORED:  # so it is not the output, and somebody has to repair it
            if not self._waiting.pause(LAST_RETRY_SECONDS):
                self.put(held)
            return
        held.end = _refused(_end_of(held))
        self._commit(batch)

    def _finish(self, ends: list[End], is_retry: bool) -> set[UUID]:
        with Session(self._engine) as session:
            written = jobs.finish(session, ends)
            if is_retry:  # the try before may have been committed, and only its answer lost
                written |= jobs.finished(session, ends)
        return written


def _end_of(held: HeldJob) -> End:
    assert held.end is not None, "a job reached the writer without its end"
    return held.end


def _refused(end: End) -> End:
    """The end of a job whose output cannot be stored: without the output, which would be refused again."""
    return replace(
        end,
        status=Status.FAILED,
        finish_reason=None,
        text="",
        token_ids=[],
        text_offsets=[],
        logprobs=None,
        choices=None,
        finish_reasons=None,
        prompt_logprobs=None,
        embedding=None,
        error_code=NOT_STORED,
        error_message="the output could not be stored; please report this with the job's id",
    )
