"""A job leaves its worker in mid-sentence, Redis loses its data while it waits, and what was told stays so."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from db import queue, stream
from db.jobs import Ready
from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.service import WEBHOOK, Service, running_service
from tests.workers.worker_process import LONG, MIDDLING, WorkerProcess, make_settings, prompts
from workers.lost_jobs import take_back

FREE = Sampling(temperature=1.0, ignore_eos=True, logprobs=1)


@pytest.fixture
def service(servers: Servers, tmp_path: Path) -> Iterator[Service]:
    with running_service(make_settings(servers, tmp_path, dtype="float32", drain_seconds=0.0)) as service:
        yield service


def start(service: Service, path: Path, *, num_tokens: int = LONG) -> tuple[WorkerProcess, UUID]:
    """A worker and its job, which has delivered a few tokens."""
    worker = WorkerProcess(service.settings, path / "worker.log")
    [job_id] = service.jobs.submit(prompts(1), max_tokens=num_tokens, sampling=FREE, seed=3, webhook_url=WEBHOOK)
    service.jobs.wait_streamed([job_id], 5)
    return worker, job_id


@pytest.mark.parametrize("how", ["drained", "killed"])
def test_a_job_cancelled_while_it_waits_again_has_the_tokens_that_were_told_though_redis_lost_them(
    service: Service, tmp_path: Path, how: str
) -> None:
    worker, job_id = start(service, tmp_path)
    leave(service, worker, job_id, how)
    told = service.jobs.delivered(job_id)
    service.jobs.redis.flushall()
    assert service.cancel(job_id)["status"] == "cancelled"
    row = service.assert_ended_once(job_id, "cancelled")
    assert row.num_output_tokens is not None and row.num_output_tokens >= len(told) >= 5
    assert service.jobs.output(job_id).token_ids[: len(told)] == [token.token_id for token in told]


def test_the_next_attempt_goes_on_from_the_tokens_that_redis_lost(service: Service, tmp_path: Path) -> None:
    worker, job_id = start(service, tmp_path, num_tokens=MIDDLING)
    leave(service, worker, job_id, "killed")
    told = service.jobs.delivered(job_id)
    service.jobs.redis.flushall()
    queue.push(service.jobs.redis, [Ready.of(service.jobs.row(job_id))])  # as the sweep does
    with WorkerProcess(service.settings, tmp_path / "next.log"):
        service.jobs.wait_ended([job_id])
        assert service.assert_ended_once(job_id, "succeeded").attempt == 2
        [first, *_] = [
            fields for _, fields in service.jobs.redis.xrange(stream.key_of(job_id)) if fields[b"k"] == b"tokens"
        ]
        assert int(first[b"n"]) > len(told), "what was told is written again at once, not computed again"
        [other] = service.jobs.submit(prompts(1), max_tokens=MIDDLING, sampling=FREE, seed=3, webhook_url=WEBHOOK)
        service.jobs.wait_ended([other])
    assert service.jobs.delivered(job_id) == service.jobs.delivered(other), "nothing shows in the output"


def leave(service: Service, worker: WorkerProcess, job_id: UUID, how: str) -> None:
    """The worker goes, and its job is queued again."""
    if how == "drained":
        assert worker.terminate() == 0, worker.log
    else:
        worker.kill()
        worker_id = service.jobs.row(job_id).worker_id
        assert worker_id is not None
        take_back(service.jobs.engine, service.jobs.redis, [worker_id])
    assert service.jobs.row(job_id).status == "queued"
