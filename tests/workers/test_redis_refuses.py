"""A Redis that answers but takes no writes: a failover made it a replica, or its disk is full."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from db.settings import Settings
from tests.servers import Servers
from tests.workers.worker_process import LONG, Jobs, WorkerProcess, make_settings, prompts, wait_until


@pytest.fixture
def worker_settings(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    return make_settings(servers, tmp_path)


@pytest.fixture
def refusing_redis(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """The test's Redis, which is a master again at the end."""
    yield redis_client
    redis_client.replicaof("NO", "ONE")


def test_a_worker_outlives_a_redis_that_refuses_writes(
    worker_settings: Settings, refusing_redis: redis.Redis, tmp_path: Path
) -> None:
    jobs = Jobs(worker_settings)
    with WorkerProcess(worker_settings, tmp_path / "worker.log") as worker:
        running = jobs.submit(prompts(1), max_tokens=LONG)
        jobs.wait_streamed(running, 1)

        refusing_redis.replicaof("127.0.0.1", "1")  # of a master that is not there: read-only, with its data
        refused = ("UNBLOCKED", "read only replica")
        wait_until(
            lambda: any(word in worker.log for word in refused) or worker.process.poll() is not None, "a refusal"
        )
        refusing_redis.replicaof("NO", "ONE")

        [row] = jobs.wait_ended(running)
        assert (row.status, row.attempt, row.num_output_tokens) == ("succeeded", 1, LONG)
        assert len(jobs.delivered(running[0])) == LONG
        [later] = jobs.wait_ended(jobs.submit(prompts(1)))
        assert later.status == "succeeded"
        assert worker.process.poll() is None
    jobs.close()
