"""A job leaves its worker in mid-sentence, Redis loses its data while it waits, and what was told stays so."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from db import queue, stream
from db.jobs import Ready
from db.sampling import Sampling
from db.stream import Token
from tests.servers import Servers
from tests.workers.service import WEBHOOK, Service, running_service
from tests.workers.worker_process import LONG, MIDDLING, WorkerProcess, make_settings, prompts
from workers import journal
from workers.journal import directory_of
from workers.lost_jobs import take_back
from workers.streamer import LONGEST_APPEND

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


@pytest.mark.parametrize("how", ["drained", "killed", "killed, and Redis with it"])
def test_a_job_cancelled_while_it_waits_again_has_the_tokens_that_were_told_though_redis_lost_them(
    service: Service, tmp_path: Path, how: str
) -> None:
    worker, job_id = start(service, tmp_path)
    told = leave(service, worker, job_id, how)
    assert service.cancel(job_id)["status"] == "cancelled"
    row = service.assert_ended_once(job_id, "cancelled")
    assert row.num_output_tokens is not None and row.num_output_tokens >= len(told) >= 5
    output = service.jobs.output(job_id)
    assert output.token_ids[: len(told)] == [token.token_id for token in told]
    assert output.text.startswith("".join(token.text for token in told))
    assert journal.writers(directory_of(service.settings)) == set(), "nobody needs it any more"


def test_the_next_attempt_goes_on_from_the_tokens_that_redis_lost(service: Service, tmp_path: Path) -> None:
    worker, job_id = start(service, tmp_path, num_tokens=MIDDLING)
    told = leave(service, worker, job_id, "killed")
    queue.push(service.jobs.redis, [Ready.of(service.jobs.row(job_id))])  # as the sweep does
    assert_goes_on(service, tmp_path, job_id, told)


def test_a_successor_takes_up_what_a_worker_told_that_died_together_with_redis(
    service: Service, tmp_path: Path
) -> None:
    worker, job_id = start(service, tmp_path, num_tokens=MIDDLING)
    worker.kill()
    told = lose_redis(service, job_id)
    assert_goes_on(service, tmp_path, job_id, told)


def assert_goes_on(service: Service, path: Path, job_id: UUID, told: list[Token]) -> None:
    """The next worker ends the job: with what was told, as if nothing had happened, and uncharged."""
    with WorkerProcess(service.settings, path / "next.log") as worker:
        service.jobs.wait_ended([job_id])
        row = service.assert_ended_once(job_id, "succeeded")
        assert (row.attempt, row.crashes) == (2, 0)
        [first, *_] = [
            fields for _, fields in service.jobs.redis.xrange(stream.key_of(job_id)) if fields[b"k"] == b"tokens"
        ]
        assert int(first[b"n"]) >= min(len(told), LONGEST_APPEND), "what was told is written again, not computed again"
        [other] = service.jobs.submit(prompts(1), max_tokens=MIDDLING, sampling=FREE, seed=3, webhook_url=WEBHOOK)
        service.jobs.wait_ended([other])
        delivered = service.jobs.delivered(job_id)
        assert delivered[: len(told)] == told
        assert delivered == service.jobs.delivered(other), "nothing shows in the output"
        assert worker.terminate() == 0, worker.log
    assert journal.writers(directory_of(service.settings)) == set(), "neither worker's is left"


def leave(service: Service, worker: WorkerProcess, job_id: UUID, how: str) -> list[Token]:
    """The worker goes, its job is queued again, and Redis loses all data. What was told until then."""
    if how == "drained":
        assert worker.terminate() == 0, worker.log
        told = lose_redis(service, job_id)
    else:
        worker_id = service.jobs.row(job_id).worker_id
        assert worker_id is not None
        worker.kill()
        told = lose_redis(service, job_id) if how != "killed" else []
        take_back(service.jobs.engine, service.jobs.redis, [worker_id], directory_of(service.settings))
        told = told or lose_redis(service, job_id)
    assert service.jobs.row(job_id).status == "queued"
    return told


def lose_redis(service: Service, job_id: UUID) -> list[Token]:
    """What was told of the job until Redis lost it."""
    told = service.jobs.delivered(job_id)
    service.jobs.redis.flushall()
    return told
