"""Cancels that race with completion: each job has one winner, one webhook event, and one story for whoever asks."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.api.sse import Event, events
from tests.servers import Servers
from tests.workers.service import WEBHOOK, Service, path_of, running_service
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts

LENGTHS = (6, 20, 40, 60, 90, 600) * 9  # tokens of each job: what its cancel, sent at its first token, may come to


@pytest.fixture(scope="module")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("races")
    settings = make_settings(servers, directory)
    with running_service(settings) as service, WorkerProcess(settings, directory / "worker.log") as worker:
        yield service
        assert worker.terminate() == 0, worker.log


@pytest.mark.parametrize("worker_seconds", [5.0, 0.0], ids=["asking the worker", "without asking the worker"])
def test_a_cancel_that_races_with_completion_has_one_winner_and_one_webhook(
    service: Service, monkeypatch: pytest.MonkeyPatch, worker_seconds: float
) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", worker_seconds)
    job_ids = submit(service.jobs)
    stories = asyncio.run(race(service, job_ids))
    rows = service.jobs.wait_ended(job_ids)
    assert {row.status for row in rows} <= {"succeeded", "cancelled"}  # both, unless the machine is very busy
    for row, (answers, seen) in zip(rows, stories, strict=True):
        service.assert_ended_once(row.id, row.status)
        job = service.get(row.id)
        assert answers == [job, job]
        assert seen[-1].data == job
        assert [event.number for event in seen] == list(range(len(seen)))
        told = "".join(event.data["text"] for event in seen if event.name == "job.token")
        assert told == job["output"]["text"]


def submit(jobs: Jobs) -> list[UUID]:
    each = zip(prompts(len(LENGTHS)), LENGTHS, strict=True)
    return [jobs.submit([prompt], max_tokens=length, webhook_url=WEBHOOK)[0] for prompt, length in each]


async def race(service: Service, job_ids: list[UUID]) -> list[tuple[list[dict[str, Any]], list[Event]]]:
    """Of each job, what two cancels of it were answered, and every event of its stream."""
    limits = httpx.Limits(max_keepalive_connections=0)  # a cancel sent on one that the server closes would be lost
    async with httpx.AsyncClient(
        base_url=service.url, headers=service.client.headers, timeout=service.client.timeout, limits=limits
    ) as client:
        return await asyncio.gather(*(cancel_at_first_token(client, job_id) for job_id in job_ids))


async def cancel_at_first_token(client: httpx.AsyncClient, job_id: UUID) -> tuple[list[dict[str, Any]], list[Event]]:
    cancels, seen = [], []
    async with client.stream("GET", f"{path_of(job_id)}/events") as response:
        async for event in events(response):
            seen.append(event)
            if event.number == 2 and not cancels:
                cancels = [asyncio.create_task(client.post(f"{path_of(job_id)}/cancel")) for _ in range(2)]
    return [reply.json() for reply in await asyncio.gather(*cancels)], seen
