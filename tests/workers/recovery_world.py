"""Workers of one model and a sweep, with the shortest lease that the settings' documentation names, and a look at ends.

A lease of 3 s, swept every second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import stream
from db.keys import default_secret
from db.models import WebhookEvent, Worker
from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts, wait_until
from workers.sweep import Sweep
from workers.sweeper import Sweeper

LEASE_SECONDS, SWEEP_SECONDS = 3.0, 1.0
WEBHOOK = "http://127.0.0.1:9/"  # nobody sends in these tests


@dataclass
class World:
    """One worker more may be started with `start`; all end with the test."""

    jobs: Jobs
    sweeper: Sweeper
    directory: Path
    started: list[WorkerProcess]

    def start(self, log_name: str, **changes: Any) -> WorkerProcess:
        settings = self.jobs.settings.model_copy(update=changes)
        self.started.append(WorkerProcess(settings, self.directory / f"{log_name}.log"))
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

    def lease_end(self, worker_id: UUID) -> datetime:
        """Until when a worker's last renewal is good."""
        with Session(self.jobs.engine) as session:
            return session.get_one(Worker, worker_id).renewed_at + timedelta(seconds=LEASE_SECONDS)

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
            attempts = self.attempts(job_id)
            assert attempts == sorted(attempts), "what an earlier attempt writes after a later one opened is not seen"
            assert (attempts[0], attempts[-1]) == (1, attempt), "and does not make the later one write all of it again"

    def attempts(self, job_id: UUID) -> list[int]:
        """Who wrote each entry of the job's stream."""
        return [int(fields[b"a"]) for _, fields in self.jobs.redis.xrange(stream.key_of(job_id))]

    def assert_undisturbed(self, job_ids: list[UUID]) -> None:
        """The streams are those of jobs to which nothing happened; `job_ids` are all of one submit."""
        others = self.submit(len(job_ids), self.jobs.wait_ended(job_ids)[0].max_tokens)
        self.jobs.wait_ended(others)
        for job_id, other_id in zip(job_ids, others, strict=True):
            assert self.jobs.delivered(job_id) == self.jobs.delivered(other_id)


@contextmanager
def recovering(servers: Servers, directory: Path, **changes: Any) -> Iterator[World]:
    """A world without workers yet; `changes` are further settings."""
    lease = {"lease_seconds": LEASE_SECONDS, "sweep_seconds": SWEEP_SECONDS}
    settings = make_settings(servers, directory, dtype="float32", **lease | changes)
    jobs = Jobs(settings)
    with Session(jobs.engine) as session, session.begin():
        default_secret(session, "t")
    sweeper = Sweeper(jobs.engine, Sweep(jobs.engine, jobs.redis, settings), sweep_seconds=SWEEP_SECONDS)
    sweeper.start()
    world = World(jobs, sweeper, directory, [])
    try:
        yield world
    finally:
        for worker in world.started:
            worker.kill()
        sweeper.stop()
        jobs.close()
