"""The same null work as a plain Celery task per request: stock kombu, prefork, results in Redis."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from db.settings import Settings
from tests.bench.null_model import PROMPT
from tests.workers.worker_process import wait_until

if TYPE_CHECKING:
    from celery import Task

NUM_PROCESSES = 2
NUM_IDLE = 200
PUBLISH_SECONDS = 4.0


@dataclass(frozen=True)
class StockFigures:
    """What a plain task per request makes of the same machine."""

    idle_seconds: list[float]  # publish -> the task's body
    published_per_second: float
    drained_per_second: float
    end_to_end_per_second: float


def measure(settings: Settings, client: redis.Redis) -> StockFigures:
    """Run it beside stores that are otherwise idle. Empties Redis."""
    url = settings.broker_url
    os.environ["BENCH_REDIS"] = url
    from tests.bench.stock_app import null  # reads the variable

    client.flushall()
    with _worker(url, settings.data_dir / "stock.log"):
        null.delay(PROMPT, 1).get(timeout=60)
        idle = [_one_seconds(null) for _ in range(NUM_IDLE)]
        client.flushall()
        began = time.perf_counter()
        num_tasks = _publish(null)
        _wait_results(client, num_tasks)
        end_to_end = num_tasks / (time.perf_counter() - began)
    client.flushall()
    began = time.perf_counter()
    num_tasks = _publish(null)
    published = num_tasks / (time.perf_counter() - began)
    with _worker(url, settings.data_dir / "stock.log"):
        _wait_results(client, 1)
        began = time.perf_counter()
        _wait_results(client, num_tasks)
        drained = num_tasks / (time.perf_counter() - began)
    client.flushall()
    return StockFigures(idle, published, drained, end_to_end)


def _publish(task: "Task[..., float]") -> int:
    """Publish from this process for a while, as fast as it goes; how many."""
    deadline, num_tasks = time.perf_counter() + PUBLISH_SECONDS, 0
    while time.perf_counter() < deadline:
        task.apply_async((PROMPT, 1))
        num_tasks += 1
    return num_tasks


def _one_seconds(task: "Task[..., float]") -> float:
    sent_at = time.time()
    return task.delay(PROMPT, 1).get(timeout=60) - sent_at


def _wait_results(client: redis.Redis, num_tasks: int) -> None:
    """A key for each result, and no more than a few others."""
    wait_until(lambda: client.dbsize() >= num_tasks, f"{num_tasks} results")


@contextlib.contextmanager
def _worker(url: str, log_path: Path) -> Iterator[None]:
    celery = Path(sys.executable).with_name("celery")
    argv = [celery, "-A", "tests.bench.stock_app", "worker", "-P", "prefork", "-c", str(NUM_PROCESSES), "-l", "WARNING"]
    with log_path.open("ab") as log:
        worker = subprocess.Popen(argv, env=os.environ | {"BENCH_REDIS": url}, stdout=log, stderr=log)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()
