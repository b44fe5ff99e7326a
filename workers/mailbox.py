"""Where held jobs wait for the one thread that sees to them, all that are due at once. It knows nothing of the work.

A job waits once, however often it is put; the first place counts, and the earliest time.
"""

import threading
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic

from workers.held import HeldJob


def now(held: HeldJob) -> float:
    """It is due at once."""
    return 0.0


class Mailbox:
    """Any thread may put, flush and close; `take` and `pause` are the thread's that does the work."""

    def __init__(self) -> None:
        # Everything is under the condition, which is notified of each change.
        self._condition = threading.Condition()
        self._waiting: dict[HeldJob, float] = {}  # in the order in which they came, and when each is due
        self._is_idle = True  # what was taken is done
        self._num_flushing = 0  # threads that wait until nothing waits: to them everything is due
        self._is_closed = False
        self._is_dropping = False

    def put(self, jobs: Iterable[HeldJob], *, due: Callable[[HeldJob], float] = now) -> None:
        """Have the thread see to these, soon; or when each is `due` (monotonic seconds), should nobody flush before."""
        dues = {held: due(held) for held in jobs}
        with self._condition:
            if self._is_dropping:
                return
            earliest = self._earliest()
            self._waiting |= {held: min(at, self._waiting.get(held, at)) for held, at in dues.items()}
            if self._earliest() < earliest:  # else who waits is woken in time, or has been
                self._condition.notify_all()

    def take(self) -> list[HeldJob]:
        """Wait for jobs and take all that are due, in order; none once the mailbox is closed and empty.

        To ask for more says that what was taken before is done, so what is not done has to be put back first.
        """
        with self._condition:
            self._is_idle = True
            self._condition.notify_all()
            while not (jobs := self._due()) and not (self._is_closed and not self._waiting):
                self._condition.wait(self._earliest() - monotonic() if self._waiting else None)
            for held in jobs:
                del self._waiting[held]
            self._is_idle = not jobs
            return jobs

    def _earliest(self) -> float:
        """When the next is due; never, where none waits."""
        return min(self._waiting.values(), default=inf)

    def _due(self) -> list[HeldJob]:
        """Those to be taken now."""
        if self._is_closed or self._num_flushing:
            return list(self._waiting)
        latest = monotonic()
        return [held for held, due in self._waiting.items() if due <= latest]

    def pause(self, seconds: float) -> bool:
        """Wait before a retry, at most until the mailbox is closed. Returns whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._is_closed, seconds)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything that was put, due or not, is taken and done. False when that took too long."""
        with self._condition:
            self._num_flushing += 1
            self._condition.notify_all()
            try:
                return self._condition.wait_for(lambda: not self._waiting and self._is_idle, timeout_seconds)
            finally:
                self._num_flushing -= 1

    def close(self, *, drop: bool = False) -> None:
        """Let the thread end: after what waits, or with `drop` without it, and without what is put from now on."""
        with self._condition:
            self._is_closed = True
            self._is_dropping = drop
            if drop:
                self._waiting.clear()
            self._condition.notify_all()
