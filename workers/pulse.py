"""Ends a process in which Python does not run any more: a step hangs in C that keeps Python's lock.

Then no thread here can see it, the lease's neither. What still runs is the timer of `faulthandler`, which is C.
"""

import faulthandler
import threading
from collections.abc import Callable

from workers.thread import WorkerThread

LOCKED_LEASES = 20.0  # after a pause of the whole process that long, a new process is as good
NUM_BEATS = 8  # in that time


class Pulse(WorkerThread):
    """Puts the timer off while Python runs. It does no I/O, so that nothing that is away holds it up."""

    def __init__(self, lease_seconds: float, *, on_failure: Callable[[BaseException], None]) -> None:
        super().__init__("pulse", on_failure)
        self._seconds = LOCKED_LEASES * lease_seconds
        self._stopping = threading.Event()

    def work(self) -> None:
        while not self._stopping.is_set():
            faulthandler.dump_traceback_later(self._seconds, exit=True)
            self._stopping.wait(self._seconds / NUM_BEATS)
        faulthandler.cancel_dump_traceback_later()

    def stop(self) -> None:
        self._stopping.set()
