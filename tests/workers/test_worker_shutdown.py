"""How the engine worker leaves: killed, drained, cut short, or unable to begin."""

import json
import signal
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import Worker
from db.queue import queue_name
from tests.servers import Servers
from tests.workers.worker_process import (
    LONG,
    MIDDLING,
    NUM_SEATS,
    PATIENCE_SECONDS,
    Jobs,
    WorkerProcess,
    make_settings,
    prompts,
    wait_until,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


def test_killed_in_mid_stream_the_text_goes_on_as_if_nothing_had_happened(servers: Servers, directory: Path) -> None:
    settings = make_settings(servers, directory, model_name="killed")
    jobs = Jobs(settings)
    with WorkerProcess(settings, directory / "killed-1.log") as first:
        job_ids = jobs.submit(prompts(NUM_SEATS), max_tokens=MIDDLING)
        jobs.wait_streamed(job_ids, 20)
        first.kill()
    delivered_before = {job_id: jobs.delivered(job_id) for job_id in job_ids}
    assert all(20 <= len(tokens) < MIDDLING for tokens in delivered_before.values())
    with WorkerProcess(settings, directory / "killed-2.log") as second:
        rows = jobs.wait_ended(job_ids)
        assert [(row.status, row.attempt, row.crashes) for row in rows] == [("succeeded", 2, 0)] * NUM_SEATS, second.log
        undisturbed = jobs.submit(prompts(NUM_SEATS), max_tokens=MIDDLING)
        jobs.wait_ended(undisturbed)
    for job_id, twin_id in zip(job_ids, undisturbed, strict=True):
        assert jobs.output(job_id).token_ids == jobs.output(twin_id).token_ids
        assert jobs.output(job_id).text == jobs.output(twin_id).text
        delivered = jobs.delivered(job_id)
        assert delivered[: len(delivered_before[job_id])] == delivered_before[job_id]
        assert [token.token_id for token in delivered] == jobs.output(job_id).token_ids
    jobs.close()


def test_a_drained_worker_hands_its_jobs_back_uncharged_and_to_the_front(servers: Servers, directory: Path) -> None:
    settings = make_settings(servers, directory, model_name="drained", drain_seconds=0.0)
    jobs = Jobs(settings)
    with WorkerProcess(settings, directory / "drained.log") as worker:
        job_ids = jobs.submit(prompts(NUM_SEATS + 2), max_tokens=LONG)
        jobs.wait_streamed(job_ids[:NUM_SEATS], 5)
        assert worker.terminate() == 0, worker.log
    rows = jobs.rows(job_ids)
    assert [(row.status, row.crashes, row.worker_id) for row in rows] == [("queued", 0, None)] * len(job_ids)
    assert queued_ids(jobs, "drained") == job_ids
    with Session(jobs.engine) as session:
        assert session.scalar(select(Worker.status).where(Worker.model == "drained")) == "stopped"
    jobs.close()


def test_a_job_that_waits_for_blocks_holds_nobody_up_and_is_handed_back_when_the_drain_begins(
    servers: Servers, directory: Path
) -> None:
    sizes = {"kv_cache_tokens": 2048, "max_num_seqs": 8}  # 128 blocks
    settings = make_settings(servers, directory, model_name="waits", drain_seconds=1000.0, **sizes)
    jobs = Jobs(settings)
    with WorkerProcess(settings, directory / "waits.log") as worker:
        [long] = jobs.submit([[5] * 600], max_tokens=1400)
        jobs.wait_streamed([long], 1)
        [waits] = jobs.submit([[6] * 1500], max_tokens=8, tier=2)
        wait_until(lambda: jobs.row(waits).status == "running", "the one that does not fit to be held")
        [high] = jobs.submit(prompts(1), max_tokens=2, tier=0)
        jobs.wait_ended([high])
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: jobs.row(waits).status == "queued", "it to be handed back")
        assert jobs.row(long).status == "running", worker.log
    assert (jobs.row(waits).crashes, jobs.row(waits).started_at) == (0, None)
    jobs.close()


def test_a_cold_shutdown_hands_running_jobs_back_at_once(servers: Servers, directory: Path) -> None:
    settings = make_settings(servers, directory, model_name="cold", drain_seconds=1000.0)
    jobs = Jobs(settings)
    with WorkerProcess(settings, directory / "cold.log") as worker:
        job_ids = jobs.submit(prompts(2), max_tokens=LONG)
        jobs.wait_streamed(job_ids, 5)
        worker.process.send_signal(signal.SIGQUIT)
        worker.process.wait(timeout=PATIENCE_SECONDS)
    assert [(row.status, row.crashes) for row in jobs.rows(job_ids)] == [("queued", 0)] * 2, worker.log
    assert queued_ids(jobs, "cold") == job_ids
    jobs.close()


def test_a_worker_stopped_while_it_loads_exits_cleanly(servers: Servers, directory: Path) -> None:
    settings = make_settings(servers, directory, model_name="loading")
    with WorkerProcess(settings, directory / "loading.log") as worker:
        wait_until(lambda: "ready." in worker.log, "Celery to be ready")
        assert worker.terminate() == 0, worker.log


def queued_ids(jobs: Jobs, model: str) -> list[UUID]:
    """The normal tier's jobs, head first."""
    messages = jobs.redis.lrange(queue_name(model, 1), 0, -1)
    return [UUID(json.loads(raw)["headers"]["id"]) for raw in reversed(messages)]


def test_a_model_that_is_not_there_ends_the_worker_with_one_clear_line(servers: Servers, directory: Path) -> None:
    settings = make_settings(servers, directory, model_name="absent", model=str(directory / "nowhere"))
    with WorkerProcess(settings, directory / "absent.log") as worker:
        assert worker.process.wait(timeout=60) == 1
        assert "the model could not be loaded: there is no directory or file" in worker.log
        assert "Traceback" not in worker.log
