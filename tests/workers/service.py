"""The API in front of real workers: jobs are cancelled and followed over HTTP, and their ends are looked at."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.client.event_lines import Event, read_events
from db.ids import public_id
from db.keys import create_key
from db.models import Job, WebhookDelivery, WebhookEvent
from db.settings import Settings
from tests.api.serving import serve
from tests.workers.worker_process import PATIENCE_SECONDS, Jobs
from workers.sweep import Sweep
from workers.sweeper import Sweeper

TENANT = "t"  # of the jobs that `Jobs` submits
WEBHOOK = "http://127.0.0.1:9/"  # nobody sends in these tests


@dataclass
class Service:
    """An API process's worth of server, and the jobs of its one tenant."""

    settings: Settings
    jobs: Jobs
    url: str
    key: str

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS)

    def get(self, job_id: UUID) -> dict[str, Any]:
        return self._json(self.client.get(path_of(job_id)))

    def cancel(self, job_id: UUID) -> dict[str, Any]:
        """The job, as the answer to its cancel has it."""
        return self._json(self.client.post(f"{path_of(job_id)}/cancel"))

    def events(self, job_id: UUID) -> list[Event]:
        """The job's whole stream, to its end."""
        with self.client.stream("GET", f"{path_of(job_id)}/events") as response:
            return list(read_events(response.iter_bytes()))

    def assert_ended_once(self, job_id: UUID, status: str) -> Job:
        """The job's row, once it has ended: so, with one webhook event, and a stream that says what the row says."""
        [row] = self.jobs.wait_ended([job_id])
        assert row.status == status
        assert self.webhooks(job_id) == [f"job.{status}"]
        events, job = self.events(job_id), self.get(job_id)
        assert [event.number for event in events] == list(range(len(events)))
        assert (events[-1].type, events[-1].data) == (f"job.{status}", job)
        tokens = [event.data for event in events if event.type == "job.token"]
        assert len(tokens) == job["usage"]["completion_tokens"]
        assert "".join(token["text"] for token in tokens) == (job["output"] or {"text": ""})["text"]
        return row

    def webhooks(self, job_id: UUID) -> list[str]:
        """The types of the job's webhook events, each of which is to be delivered once."""
        with Session(self.jobs.engine) as session:
            types = list(session.scalars(select(WebhookEvent.type).where(WebhookEvent.job_id == job_id)))
            deliveries = list(session.scalars(select(WebhookDelivery).where(WebhookDelivery.job_id == job_id)))
        assert [delivery.url for delivery in deliveries] == [WEBHOOK] * len(types)
        return types

    def _json(self, reply: httpx.Response) -> dict[str, Any]:
        assert reply.status_code == 200, reply.text
        job: dict[str, Any] = reply.json()
        return job


@contextmanager
def running_service(settings: Settings) -> Iterator[Service]:
    """A service on an event loop of its own, so that tests may wait for workers meanwhile."""
    jobs = Jobs(settings)
    with Session(jobs.engine) as session, session.begin():
        key = create_key(session, tenant=TENANT, name="test", scopes=["*"])
    with _serving(settings) as url:
        service = Service(settings, jobs, url, key)
        yield service
        service.client.close()
    jobs.close()


@contextmanager
def _serving(settings: Settings) -> Iterator[str]:
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stopping = asyncio.Event()
        async with serve(settings) as url:
            started.set_result((url, asyncio.get_running_loop(), stopping))
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="api")
    thread.start()
    url, loop, stopping = started.result(PATIENCE_SECONDS)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()


def path_of(job_id: UUID) -> str:
    return f"/v1/jobs/{public_id('job_', job_id)}"


@contextmanager
def sweeping(jobs: Jobs) -> Iterator[None]:
    """With the sweep of a tasks worker: what a killed worker had popped and not claimed yet is in no list any more."""
    sweep = Sweep(jobs.engine, jobs.redis, jobs.settings)
    sweeper = Sweeper(jobs.engine, sweep, sweep_seconds=jobs.settings.sweep_seconds)
    sweeper.start()
    try:
        yield
    finally:
        sweeper.stop()
