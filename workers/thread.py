"""A worker's thread: one that dies of an exception takes the process with it; the worker cannot do without it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class WorkerThread(threading.Thread, ABC):
    """Runs `work` and reports an exception that it did not survive."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._on_failure = on_failure

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._on_failure(error)

    @abstractmethod
    def work(self) -> None:
        """What the thread does until it is stopped."""
