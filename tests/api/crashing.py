"""Jobs whose workers die, driven by hand."""

from collections.abc import Callable
from pathlib import Path

from tests.api.hand_worker import HandWorker
from workers.lost_jobs import take_back

NO_JOURNALS = Path("another-host")  # is not there


def crash(make_worker: Callable[..., HandWorker], job_id: str, *, times: int = 3, **card: str) -> None:
    """Let so many workers, each of its own name, die while they run the job; with the third it is dead."""
    for number in range(1, times + 1):
        worker = make_worker(name=f"engine@gpu-{number}", **card)
        worker.start(job_id)
        take_back(worker.engine, worker.redis, [worker.card.id], NO_JOURNALS)
