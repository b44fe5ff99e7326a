"""The Celery side of one held job: the callbacks of its request. Hub thread only."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated
from celery.exceptions import Retry

from db.models import Status
from workers.generate import ends
from workers.held import HeldJob, Outcome

Result = tuple[int, Any, float]  # (failed, value or ExceptionInfo, seconds), as Celery's callbacks take it


class TaskSlot:
    """What `Pool.on_apply` answers: Celery keeps it weakly and calls `terminate` on it."""

    def __init__(
        self,
        number: int,
        held: HeldJob,
        *,
        run: Callable[[], Result],
        callback: Callable[[Result], None],
        terminate_job: Callable[[int, int | None], None],
    ) -> None:
        """`number` stands for a pid; `run` traces the task's body; `callback` tells Celery what became of it.

        `terminate_job` is the pool's.
        """
        self._terminate_job = terminate_job
        self._run = run
        self._callback = callback
        self.number = number
        self.held = held
        self.started = monotonic()

    def terminate(self, signal: int | None = None) -> None:
        """Celery wants the task ended."""
        self._terminate_job(self.number, signal)

    def conclude(self, outcome: Outcome) -> None:
        """Tell Celery how the task ended: succeeded or failed by its body, else revoked, or to be run again."""
        self._callback(self._result(outcome))

    def _result(self, outcome: Outcome) -> Result:
        seconds = monotonic() - self.started
        if outcome is Outcome.RELEASED:
            return 1, _info(Retry("handed back to the queue")), seconds
        end = self.held.end
        if outcome is Outcome.LOST or end is None or end.status == Status.CANCELLED:
            return 1, _info(Terminated("cancelled" if outcome is Outcome.ENDED else "taken over")), seconds
        ends[str(self.held.job_id)] = end
        failed, value, _ = self._run()
        return failed, value, seconds


def _info(error: BaseException) -> ExceptionInfo:
    """Celery's form of an exception, which can only be made of one that is being handled."""
    try:
        raise error
    except BaseException:
        return ExceptionInfo()
