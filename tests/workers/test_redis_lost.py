"""Redis is disposable: all its data goes while workers work, and what was so in Postgres is so again."""

import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from db.models import Job
from db.queue import queue_name
from db.sampling import Sampling
from db.settings import TIERS
from tests.servers import Servers
from tests.workers.worker_process import NUM_SEATS, Jobs, WorkerProcess, make_settings, prompts, wait_until
from workers.sweep import MARGIN_SECONDS, Sweep
from workers.sweeper import Sweeper

NUM_TOKENS = 400
FREE = Sampling(temperature=1.0, ignore_eos=True)


@pytest.fixture(scope="module")
def worker(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    directory = tmp_path_factory.mktemp("disposable")
    settings = make_settings(servers, directory, dtype="float32", lease_seconds=30.0, sweep_seconds=1.0)
    with WorkerProcess(settings, directory / "worker.log") as worker:
        yield worker


@pytest.fixture
def jobs(worker: WorkerProcess) -> Iterator[Jobs]:
    jobs = Jobs(worker.settings)
    yield jobs
    jobs.close()


@pytest.fixture
def sweep(jobs: Jobs) -> Sweep:
    return Sweep(jobs.engine, jobs.redis, jobs.settings)


def test_a_flushed_redis_is_whole_after_one_sweep_and_no_job_is_run_twice(
    jobs: Jobs, worker: WorkerProcess, sweep: Sweep
) -> None:
    running = jobs.submit(prompts(NUM_SEATS), max_tokens=NUM_TOKENS, sampling=FREE, seed=1)
    jobs.wait_streamed(running, 5)
    worker.freeze()  # for as long as the lists are looked at
    queued = [job_id for tier in (2, 0, 1, 2, 0, 1) for job_id in jobs.submit(prompts(3), tier=tier, max_tokens=4)]
    jobs.redis.flushall()
    for num_margins in (1, 2):  # what is younger may be on its way into its list; what is there is left alone
        sweep.run(now(jobs) + num_margins * MARGIN_SECONDS)
        for tier in range(len(TIERS)):
            assert listed(jobs, tier) == [row.id for row in in_order(jobs, queued) if row.tier == tier]
    worker.thaw()
    rows = jobs.wait_ended([*running, *queued])
    assert {(row.status, row.attempt, row.crashes) for row in rows} == {("succeeded", 1, 0)}
    started = sorted(jobs.rows(queued), key=lambda row: (row.tier, row.started_at, row.ready_at))
    assert [row.id for row in started] == [row.id for row in in_order(jobs, queued)]
    wait_until(lambda: all(jobs.num_streamed(each) == NUM_TOKENS for each in running), "the streams to be whole")
    for job_id in running:
        assert [token.token_id for token in jobs.delivered(job_id)] == jobs.output(job_id).token_ids
        assert "".join(token.text for token in jobs.delivered(job_id)) == jobs.output(job_id).text


def test_redis_may_be_flushed_again_and_again_while_jobs_come_and_go(jobs: Jobs, sweep: Sweep) -> None:
    sweeper = Sweeper(jobs.engine, sweep, sweep_seconds=jobs.settings.sweep_seconds)
    sweeper.start()
    job_ids: list[UUID] = []
    for tier in (0, 1, 2, 1):
        batch = jobs.submit(prompts(16), tier=tier, max_tokens=24)
        job_ids += batch
        wait_until(lambda ids=batch: any(row.attempt for row in jobs.rows(ids)), "some of them to run")
        jobs.redis.flushall()
    rows = jobs.wait_ended(job_ids)
    sweeper.stop()
    assert {(row.status, row.attempt, row.crashes) for row in rows} == {("succeeded", 1, 0)}


def now(jobs: Jobs) -> float:
    """The Postgres clock, Unix seconds."""
    with Session(jobs.engine) as session:
        return float(session.scalars(text("SELECT extract(epoch FROM clock_timestamp())")).one())


def in_order(jobs: Jobs, job_ids: list[UUID]) -> list[Job]:
    """By tier, and then as they became ready."""
    with Session(jobs.engine) as session:
        return list(session.scalars(select(Job).where(Job.id.in_(job_ids)).order_by(Job.tier, Job.ready_at)))


def listed(jobs: Jobs, tier: int) -> list[UUID]:
    """The tier's list in Redis, head first."""
    messages = jobs.redis.lrange(queue_name(jobs.settings.served_name, tier), 0, -1)
    return [UUID(json.loads(raw)["headers"]["id"]) for raw in reversed(messages)]
