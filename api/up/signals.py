"""Ctrl-C, SIGTERM and a closed terminal, as exceptions in the main thread.

A handler may run anywhere, and where an object is finalized Python drops what it raises. So whoever waits in a loop
does it by `pause`, which raises again what did not arrive.
"""

import signal
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECOND_THOUGHT_SECONDS = 1  # sooner it is the same wish, which came on two ways, as through make


class StopRequested(BaseException):
    """Somebody wants it stopped. No `Exception`, so that nothing on the way takes it for an error of its own."""


class StopSignals:
    """Raises StopRequested at the first of the signals, and again at a later Ctrl-C of somebody who will not wait."""

    def __init__(self) -> None:
        self.first_at: float | None = None  # monotonic; written by the handler
        self._is_unheard = False  # set by the handler: what it raised has not arrived yet
        for number in SIGNALS:
            # `nohup` ignores the closed terminal for us: that stays so.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def pause(self, seconds: float) -> None:
        """Sleep; raises StopRequested also for a signal from before."""
        if not self._is_unheard:
            time.sleep(seconds)
        if self._is_unheard:
            raise StopRequested

    def heard(self) -> None:
        """StopRequested has arrived, and is acted upon."""
        self._is_unheard = False

    def ignore(self) -> None:
        """Let the last steps of stopping happen undisturbed."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
        elif number != signal.SIGINT or now - self.first_at <= SECOND_THOUGHT_SECONDS:
            return
        self._is_unheard = True
        raise StopRequested
