"""What a key's limits have to do with its batches: nothing, either way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from sqlalchemy import Engine

from api.metrics import Metrics
from api.services import open_services
from db.models import Status
from db.settings import Settings
from tests.api.hand_worker import HandWorker
from tests.api.limited_keys import make_key
from tests.api.serving import make_client, serve
from tests.openai.batch_world import BatchWorld, request

JOB = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}


@asynccontextmanager
async def batches_of(
    settings: Settings, engine: Engine, worker: HandWorker, key: str, **changes: Any
) -> AsyncIterator[tuple[BatchWorld, Any]]:
    """Batches of a key, four lines at a time, and a client of the native API with it."""
    settings = settings.model_copy(update=changes | {"batch_window": 4})
    async with (
        serve(settings) as url,
        make_client(url, key) as client,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as sdk,
        open_services(settings, Metrics()) as services,
    ):
        world = BatchWorld(services, engine, sdk, worker)
        try:
            yield world, client
        finally:
            await world.runner.close()


async def test_lines_do_not_count_among_the_jobs_that_a_key_may_have_at_once(settings, engine, worker) -> None:
    key = make_key(engine, concurrent_jobs=2)
    async with batches_of(settings, engine, worker, key) as (world, client):
        batch_id = await world.begin([request(str(i)) for i in range(6)])
        lines = world.jobs(Status.QUEUED)
        assert len(lines) == 4, "more than the key may have at once"
        worker.start(lines[0])
        replies = [await client.post("/v1/jobs", json=JOB) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [202, 202, 429]
        worker.end(lines[0])
        await world.rounds()
        assert len(world.jobs(Status.QUEUED)) == 4 + 2, "and a batch goes on beside a key that is at its limit"
        batch = await world.run_to_end(batch_id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 6, 0)


async def test_lines_that_wait_leave_a_key_its_share_of_the_queue(settings, engine, worker) -> None:
    async with batches_of(settings, engine, worker, make_key(engine), max_queued_jobs_per_key=3) as (world, client):
        await world.begin([request(str(i)) for i in range(6)])
        assert len(world.jobs(Status.QUEUED)) == 3
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 202


async def test_a_key_whose_share_of_the_queue_is_full_holds_up_no_line(settings, engine, worker) -> None:
    async with batches_of(settings, engine, worker, make_key(engine), max_queued_jobs_per_key=3) as (world, client):
        for _ in range(3):
            assert (await client.post("/v1/jobs", json=JOB)).status_code == 202
        await world.begin([request(str(i)) for i in range(6)])
        assert len(world.jobs(Status.QUEUED)) == 3 + 3


async def test_lines_take_nothing_of_the_rates_of_a_key(settings, engine, worker) -> None:
    key = make_key(engine, requests_per_minute=2, tokens_per_minute=15)
    async with batches_of(settings, engine, worker, key) as (world, client):
        batch = await world.run_to_end(await world.create([request(str(i)) for i in range(6)]))
        assert batch.request_counts.completed == 6
        assert (await client.post("/v1/jobs", json=JOB)).status_code == 202
