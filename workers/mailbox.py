"""Where held jobs wait for the one thread that sees to them, all that have come at once. It knows nothing of the work.

A job waits once, however often it is put; the first time counts.
"""

import threading
from collections.abc import Iterable

from workers.held import HeldJob


class Mailbox:
    """Any thread may put, flush and close; `take` and `pause` are the thread's that does the work."""

    def __init__(self) -> None:
        # Everything is under the condition, which is notified of each change.
        self._condition = threading.Condition()
        self._waiting: dict[HeldJob, None] = {}  # in the order in which they came
        self._is_idle = True  # what was taken is done
        self._is_closed = False
        self._is_dropping = False

    def put(self, jobs: Iterable[HeldJob]) -> None:
        """Have the thread see to these, soon."""
        with self._condition:
            if not self._is_dropping:
                self._waiting.update(dict.fromkeys(jobs))
                self._condition.notify_all()

    def take(self) -> list[HeldJob]:
        """Wait for jobs and take them all, in order; none once the mailbox is closed and empty.

        To ask for more says that what was taken before is done, so what is not done has to be put back first.
        """
        with self._condition:
            self._is_idle = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._waiting or self._is_closed)
            jobs = list(self._waiting)
            self._waiting.clear()
            self._is_idle = not jobs
            return jobs

    def pause(self, seconds: float) -> bool:
        """Wait before a retry, at most until the mailbox is closed. Returns whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._is_closed, seconds)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything that was put is taken and done. False when that took too long."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._waiting and self._is_idle, timeout_seconds)

    def close(self, *, drop: bool = False) -> None:
        """Let the thread end: after what waits, or with `drop` without it, and without what is put from now on."""
        with self._condition:
            self._is_closed = True
            self._is_dropping = drop
            if drop:
                self._waiting.clear()
            self._condition.notify_all()
