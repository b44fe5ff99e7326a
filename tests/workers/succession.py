"""The worker of one model that the tests of a file share: each takes over the one that the test before left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from db.settings import Settings
from tests.workers.worker_process import WorkerProcess


class Succession:
    """Workers of one model, one at a time: one that a test ends is followed by a new one."""

    def __init__(self, settings: Settings, directory: Path, *, app: str) -> None:
        self._settings = settings
        self._directory = directory
        self._app = app
        self._workers: list[WorkerProcess] = []

    @contextmanager
    def worker(self) -> Iterator[WorkerProcess]:
        """The worker that runs, or a new one, which may still be starting. It stays, unless the test fails."""
        if not self._workers or self._workers[-1].process.poll() is not None:
            log_path = self._directory / f"worker-{len(self._workers)}.log"
            self._workers.append(WorkerProcess(self._settings, log_path, app=self._app))
        try:
            yield self._workers[-1]
        except BaseException:  # who knows in what state it is
            self.end()
            raise

    def end(self) -> None:
        """Kill the worker if there is one."""
        if self._workers and self._workers[-1].process.poll() is None:
            self._workers[-1].kill()
