"""Both stores as the API and engine workers leave them, committed: what the tasks worker finds."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db import jobs, queue, stream
from db.keys import default_secret
from db.models import Job, WebhookDelivery, WebhookEvent
from db.queue import Ready
from db.stream import Append
from tests.db import rows
from workers.sweep import Report, Sweep

MODEL, TENANT = "m", "t"  # of the rows
LEASE = 30.0  # seconds, the default


@dataclass(frozen=True)
class World:
    """Short ways to change both stores and to look at them."""

    engine: Engine
    redis: redis.Redis

    def now(self) -> float:
        """The Postgres clock, Unix seconds."""
        with Session(self.engine) as session:
            return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def add_worker(self, *, renewed_seconds_ago: float = 0.0) -> UUID:
        """A registered worker whose lease was renewed so long ago."""
        with Session(self.engine) as session, session.begin():
            return rows.add_worker(session, renewed=renewed_seconds_ago)

    def add_job(self, *, ready_at: float | None, **fields: Any) -> UUID:
        """A queued job without a message; parked for None. `fields` are further ones of its row."""
        ready = None if ready_at is None else datetime.fromtimestamp(ready_at, UTC)
        with Session(self.engine) as session, session.begin():
            return rows.add_job(session, ready_at=ready, **fields).id

    def push(self, job_id: UUID) -> None:
        """The job's message, at the end of its list."""
        queue.push(self.redis, [Ready.of(self.job(job_id))])

    def claim(self, worker_id: UUID, *job_ids: UUID) -> None:
        """What the worker's puller does after a pop."""
        with Session(self.engine) as session, session.begin():
            assert len(jobs.claim(session, worker_id, job_ids)) == len(job_ids)

    def deliver(self, worker_id: UUID, job_id: UUID, num_tokens: int, *, attempt: int = 1) -> None:
        """What the worker's streamer does: so many tokens after those that are there."""
        first = len(stream.open(self.redis, job_id, attempt, worker_id).tokens)
        tokens = rows.tokens(num_tokens, first=first)
        [answer] = stream.append_many(self.redis, [Append(job_id, attempt, worker_id, first, tokens)])
        assert answer.status == "ok"

    def finish(self, worker_id: UUID, *job_ids: UUID, attempt: int = 1) -> set[UUID]:
        """What the worker's writer does at a success."""
        with Session(self.engine) as session, session.begin():
            return jobs.finish(session, [rows.end_of(job_id, worker_id, attempt=attempt) for job_id in job_ids])

    def finished_jobs(self, *webhook_urls: str | None) -> list[UUID]:
        """Jobs that succeeded, one for each URL, with their events in the outbox."""
        with Session(self.engine) as session, session.begin():
            default_secret(session, TENANT)
        worker_id = self.add_worker()
        job_ids = [self.add_job(ready_at=self.now(), webhook_url=url) for url in webhook_urls]
        self.claim(worker_id, *job_ids)
        assert self.finish(worker_id, *job_ids) == set(job_ids)
        return job_ids

    def job(self, job_id: UUID) -> Job:
        """The job's row as it is now."""
        with Session(self.engine) as session:
            return session.scalars(select(Job).where(Job.id == job_id)).one()

    def events(self, job_id: UUID) -> list[str]:
        """The types of the job's webhook events."""
        with Session(self.engine) as session:
            return list(session.scalars(select(WebhookEvent.type).where(WebhookEvent.job_id == job_id)))

    def delivery(self, job_id: UUID) -> WebhookDelivery:
        """The one delivery of the job's event."""
        with Session(self.engine) as session:
            return session.scalars(select(WebhookDelivery).where(WebhookDelivery.job_id == job_id)).one()

    def pop_all(self) -> list[UUID]:
        """Take every message, the oldest first, and return the job ids."""
        limits = {"seats": 100_000, "blocks": 10**9, "live_workers": 1, "pops": 0}
        aging = {"policy": "fcfs", "threshold": 30.0, "boost": 0.5}
        popped = queue.pop(self.redis, model=MODEL, now=self.now(), **aging, **limits)  # type: ignore[arg-type]
        return [message.job_id for message in popped.messages]


@dataclass(frozen=True)
class Sweeping(World):
    """A world with a sweep whose rounds the test runs."""

    sweep: Sweep

    def warm_up(self) -> None:
        """Rounds every five seconds for one lease, as the sweep itself sees them."""
        now = self.now()
        for seconds in range(0, int(LEASE) + 1, 5):
            report = self.sweep.run(now - LEASE + seconds)
        assert report.is_judging

    def round(self) -> Report:
        """One more round, now."""
        return self.sweep.run(self.now())
