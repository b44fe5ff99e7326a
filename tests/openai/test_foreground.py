"""A client that waits for a completion or a message: how a stream ends, and what becomes of the job when it leaves."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from db.models import Status
from tests import chat_templates
from tests.api.hand_worker import HandWorker
from tests.api.sse import events
from tests.api.waiting import job_in_status, only_job


@dataclass(frozen=True)
class Endpoint:
    """Where OpenAI's clients wait, and how they spell it."""

    path: str
    body: dict[str, Any]
    create: Callable[[openai.AsyncOpenAI], Callable[..., Any]]
    id_prefix: str
    text_of: Callable[[dict[str, Any]], str]  # of the first choice


COMPLETIONS = Endpoint(
    "/v1/completions",
    {"model": "tiny", "prompt": "the mill", "max_tokens": 8},
    lambda sdk: sdk.completions.create,
    "cmpl-",
    lambda choice: choice["text"],
)
CHAT = Endpoint(
    "/v1/chat/completions",
    {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 8},
    lambda sdk: sdk.chat.completions.create,
    "chatcmpl-",
    lambda choice: choice["message"]["content"],
)


@pytest.fixture(params=[COMPLETIONS, CHAT], ids=["completion", "chat"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    return request.param


@pytest.fixture
def worker(make_worker) -> HandWorker:
    return make_worker(max_model_len=4096, num_blocks=1024, chat_template=chat_templates.QWEN)


async def test_a_stream_ends_with_done_and_carries_no_ids(client, worker, endpoint) -> None:
    async with client.stream("POST", endpoint.path, json=endpoint.body | {"stream": True}) as response:
        worker.run(await only_job(client), " x")
        seen = [event async for event in events(response)]
    assert seen[-1].data == "[DONE]"
    assert {(event.name, event.number) for event in seen} == {(None, None)}
    assert not any("usage" in event.data for event in seen[:-1]), "nobody asked for it"


async def test_an_error_in_a_stream_reaches_the_client(client, worker, sdk, endpoint) -> None:
    stream = await endpoint.create(sdk)(**endpoint.body, stream=True)
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a")
    worker.end(job_id, Status.FAILED, error_code="broken", error_message="it broke")
    with pytest.raises(openai.APIError, match="it broke"):
        _ = [chunk async for chunk in stream]


async def test_a_client_that_leaves_a_stream_cancels_its_job(client, worker, endpoint, monkeypatch) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.1)
    async with client.stream("POST", endpoint.path, json=endpoint.body | {"stream": True}) as response:
        job_id = await only_job(client)
        worker.start(job_id)
        worker.say(job_id, " a")
        await anext(events(response))
    job = await job_in_status(client, job_id, "cancelled")
    assert job["output"]["text"] == " a"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_cancels_its_job(
    client, url, worker, endpoint, stream
) -> None:
    async with httpx.AsyncClient(base_url=url, headers=client.headers) as leaving:
        asking = asyncio.create_task(leaving.post(endpoint.path, json=endpoint.body | {"stream": stream}))
        job_id = await only_job(client)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await job_in_status(client, job_id, "cancelled")


async def test_with_an_idempotency_key_the_job_goes_on_and_the_repeat_finds_it(client, worker, endpoint) -> None:
    headers = {"Idempotency-Key": "once"}
    asking = asyncio.create_task(client.post(endpoint.path, json=endpoint.body, headers=headers))
    job_id = await only_job(client)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    worker.run(job_id, " kept")
    repeat = (await client.post(endpoint.path, json=endpoint.body, headers=headers)).json()
    assert repeat["id"] == job_id.replace("job_", endpoint.id_prefix)
    assert endpoint.text_of(repeat["choices"][0]) == " kept"
