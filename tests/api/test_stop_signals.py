"""The wish to stop, wherever the signal finds the process."""

import io
import os
import signal
from collections.abc import Iterator

import pytest

from api.up.signals import SIGNALS, StopRequested, StopSignals


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield StopSignals()
    for number, handler in before.items():
        signal.signal(number, handler)


class Killed(io.RawIOBase):
    """Is signalled while it is finalized, as an answer of supervisord may be: Python drops what is raised then."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_whose_exception_was_dropped_stops_the_next_pause(signals: StopSignals) -> None:
    Killed()
    with pytest.raises(StopRequested):
        signals.pause(60.0)


def test_a_signal_that_was_acted_upon_stops_no_pause(signals: StopSignals) -> None:
    with pytest.raises(StopRequested):
        os.kill(os.getpid(), signal.SIGTERM)
    signals.heard()
    os.kill(os.getpid(), signal.SIGTERM)  # it is stopping already
    signals.pause(0.0)
