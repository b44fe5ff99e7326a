"""A wrong clock: with this directory on PYTHONPATH a process's wall clock is CHAOS_CLOCK_SECONDS off."""

import os
import time

OFFSET_SECONDS = float(os.environ.get("CHAOS_CLOCK_SECONDS", "0"))
_true_time = time.time


def _skewed_time() -> float:
    return _true_time() + OFFSET_SECONDS


time.time = _skewed_time
