"""The engine worker's app, which says in its log when its process forks: `celery -A tests.workers.fork_watching_app`.

Python's own forks and those of C libraries. Starting another program is none: nothing of ours runs in between.
"""

import ctypes
import os

from workers.app import app

__all__ = ["app"]

STDERR = 2  # goes to the worker's log


@ctypes.CFUNCTYPE(None)
def _say_so() -> None:
    os.write(STDERR, b"this process forks\n")


assert ctypes.CDLL(None).__register_atfork(_say_so, None, None, None) == 0  # what pthread_atfork calls in glibc
