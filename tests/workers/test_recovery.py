"""What a dead, frozen, cut-off or drained worker leaves behind runs on elsewhere, and nothing that is late shows.

Two workers of one model and a sweep, with the shortest lease that the settings' documentation names: 3 s, swept every
second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.keys import default_secret
from db.models import WebhookEvent, Worker
from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts, wait_until
from workers.sweep import Sweep
from workers.sweeper import Sweeper

LEASE_SECONDS, SWEEP_SECONDS = 3.0, 1.0
NUM_TOKENS = 500
WEBHOOK = "http://127.0.0.1:9/"  # nobody sends in this test


@dataclass
class World:
    """One worker more may be started with `start`; all end with the test."""

    jobs: Jobs
    sweeper: Sweeper
    directory: Path
    started: list[WorkerProcess]

    def start(self, log_name: str) -> WorkerProcess:
        self.started.append(WorkerProcess(self.jobs.settings, self.directory / f"{log_name}.log"))
        return self.started[-1]

    def submit(self, num_jobs: int, num_tokens: int) -> list[UUID]:
        """Jobs whose tokens do not repeat: a doubled one would show."""
        sampling = Sampling(temperature=1.0, ignore_eos=True)
        options = {"sampling": sampling, "seed": 3, "webhook_url": WEBHOOK}
        return self.jobs.submit(prompts(num_jobs), max_tokens=num_tokens, **options)

    def ready_ids(self, worker: WorkerProcess) -> list[UUID]:
        """Under which ids a process is ready: one, or none, but a new one after a lost lease."""
        with Session(self.jobs.engine) as session:
            found = select(Worker.id).where(Worker.pid == worker.process.pid, Worker.status == "ready")
            return list(session.scalars(found))

    def wait_ready(self, worker: WorkerProcess) -> UUID:
        [worker_id] = wait_until(lambda: self.ready_ids(worker), "a worker to be ready")
        return worker_id

    def events(self, job_ids: list[UUID]) -> list[tuple[UUID, str]]:
        """Every webhook event of the jobs, in the jobs' order."""
        with Session(self.jobs.engine) as session:
            found = select(WebhookEvent.job_id, WebhookEvent.type).where(WebhookEvent.job_id.in_(job_ids))
            return sorted((job_id, kind) for job_id, kind in session.execute(found))

    def assert_ended_once(self, job_ids: list[UUID], *, attempt: int) -> None:
        """One success, by this attempt, one event, and a stream that says what the row says."""
        rows = self.jobs.wait_ended(job_ids)
        assert [(row.status, row.attempt, row.crashes) for row in rows] == [("succeeded", attempt, 0)] * len(job_ids)
        assert self.events(job_ids) == sorted((job_id, "job.succeeded") for job_id in job_ids)
        for job_id in job_ids:
            delivered, output = self.jobs.delivered(job_id), self.jobs.output(job_id)
            assert [token.token_id for token in delivered] == output.token_ids
            assert "".join(token.text for token in delivered) == output.text

    def assert_undisturbed(self, job_ids: list[UUID]) -> None:
        """The streams are those of jobs to which nothing happened; `job_ids` are all of one submit."""
        others = self.submit(len(job_ids), self.jobs.wait_ended(job_ids)[0].max_tokens)
        self.jobs.wait_ended(others)
        for job_id, other_id in zip(job_ids, others, strict=True):
            assert self.jobs.delivered(job_id) == self.jobs.delivered(other_id)


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("recovery")
    lease = {"lease_seconds": LEASE_SECONDS, "sweep_seconds": SWEEP_SECONDS}
    settings = make_settings(servers, directory, drain_seconds=0.0, dtype="float32", **lease)
    jobs = Jobs(settings)
    with Session(jobs.engine) as session, session.begin():
        default_secret(session, "t")
    sweeper = Sweeper(jobs.engine, Sweep(jobs.engine, jobs.redis, settings), sweep_seconds=SWEEP_SECONDS)
    sweeper.start()
    world = World(jobs, sweeper, directory, [])
    yield world
    for worker in world.started:
        worker.kill()
    sweeper.stop()
    jobs.close()


@pytest.fixture(scope="module")
def first(world: World) -> WorkerProcess:
    return world.start("first")


def test_what_a_frozen_worker_writes_when_it_wakes_is_never_seen(world: World, first: WorkerProcess) -> None:
    first_id = world.wait_ready(first)
    long, short = world.submit(1, 1900), world.submit(2, 600)
    world.jobs.wait_streamed([*short, *long], 5)
    first.freeze()
    second = world.start("second")
    second_id = world.wait_ready(second)
    world.jobs.wait_ended(short)
    assert (world.jobs.row(long[0]).status, world.jobs.row(long[0]).worker_id) == ("running", second_id)
    first.thaw()  # in the middle of three jobs: two have ended, and one runs elsewhere
    wait_until(lambda: world.ready_ids(first) not in ([], [first_id]), "it to come back under another id")
    world.assert_ended_once([*long, *short], attempt=2)
    assert {row.worker_id for row in world.jobs.rows([*long, *short])} == {second_id}
    world.assert_undisturbed(short)


def test_a_worker_back_from_an_outage_longer_than_its_lease_commits_what_it_did(world: World, servers: Servers) -> None:
    job_ids = world.submit(4, NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    servers.postgres.stop()
    back_at = monotonic() + LEASE_SECONDS + 2 * SWEEP_SECONDS  # the fault's length: every lease is over by then
    world.jobs.wait_streamed(job_ids, NUM_TOKENS)
    wait_until(lambda: monotonic() > back_at, "the outage to have lasted")
    servers.postgres.start()
    world.assert_ended_once(job_ids, attempt=1)
    world.assert_undisturbed(job_ids)


def test_a_drained_workers_jobs_run_elsewhere_without_lease_or_sweep(world: World) -> None:
    world.sweeper.stop()
    job_ids = world.submit(4, 2 * NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    drained, other = world.started
    other_id = world.ready_ids(other)[-1]
    moved = [row.id for row in world.jobs.rows(job_ids) if row.worker_id != other_id]
    assert moved, "both workers take their share"
    assert drained.terminate() == 0, drained.log
    assert {row.worker_id for row in world.jobs.wait_ended(job_ids)} == {other_id}
    world.assert_ended_once(moved, attempt=2)
    world.assert_undisturbed(job_ids)
