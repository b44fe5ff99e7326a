"""POST /v1/completions with the unmodified `openai` client, and what that client does not show."""

import asyncio
import re
from typing import Any

import openai
import pytest

from db.models import Status
from tests.api.hand_worker import HandWorker
from tests.api.sse import events
from tests.api.waiting import only_job
from workers.text.tokenizer import Tokenizer

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the mill", "max_tokens": 8}


async def test_the_openai_client_gets_a_whole_completion(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.completions.create(**BODY, logprobs=1, seed=5))
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " turns", "", " on", logprobs=True)
    worker.end(job_id)
    completion = await asking
    choice = completion.choices[0]
    assert (completion.id, completion.object) == (job_id.replace("job_", "cmpl-"), "text_completion")
    assert (choice.text, choice.finish_reason, completion.usage.completion_tokens) == (" turns on", "stop", 3)
    assert choice.logprobs.token_logprobs == [-0.5] * 3
    assert choice.logprobs.text_offset == [0, 6, 6]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) == 3
    assert completion._request_id.startswith("req_")


async def test_a_completion_that_is_streamed_ends_by_what_the_stream_says_of_the_end(client, worker, sdk) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await sdk.completions.create(**BODY, **options)
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " turns", " on")
    worker.tell_end(job_id)  # its row is running still, so whoever asks that waits for long
    *chunks, usage = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == " turns on"
    assert chunks[-1].choices[0].finish_reason == "stop" and usage.usage.completion_tokens == 2


async def test_the_openai_client_streams_the_text_then_the_reason_then_the_usage(client, worker, sdk) -> None:
    stream = await sdk.completions.create(**BODY, stream=True, stream_options={"include_usage": True})
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a")
    first = await anext(stream)
    assert (first.choices[0].text, first.choices[0].finish_reason, first.usage) == (" a", None, None)
    worker.say(job_id, "", " b")
    worker.end(job_id)
    rest = [chunk async for chunk in stream]
    assert all("usage" in chunk.model_fields_set for chunk in (first, *rest))
    assert [chunk.choices[0].text for chunk in rest[:-1]] == [" b", ""], "what comes together is told together"
    assert [chunk.choices[0].finish_reason for chunk in rest[:-1]] == [None, "stop"]
    assert (rest[-1].choices, rest[-1].usage.completion_tokens) == ([], 3)


@pytest.mark.parametrize(
    ("status", "http_status"), [(Status.FAILED, 500), (Status.EXPIRED, 504), (Status.CANCELLED, 500)]
)
async def test_an_end_without_success_is_an_error_that_is_not_retried(
    client, worker: HandWorker, status: Status, http_status: int
) -> None:
    asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
    job_id = await only_job(client)
    worker.start(job_id)
    worker.end(job_id, status, error_code="broken", error_message="it broke")
    reply = await asking
    assert (reply.status_code, reply.json()["error"]["code"]) == (http_status, "broken")
    assert "it broke" in reply.json()["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("texts", "words"),
    [((), "ended as cancelled before its first token."), ((" a", " b"), "ended as cancelled after 2 of its tokens.")],
)
async def test_the_end_of_a_cancelled_stream_tells_how_far_it_came(client, worker, sdk, texts, words) -> None:
    stream = await sdk.completions.create(**BODY, stream=True)
    job_id = await only_job(client)
    worker.start(job_id)
    if texts:
        worker.say(job_id, *texts)
    worker.end(job_id, Status.CANCELLED)
    with pytest.raises(openai.APIError, match=words):
        _ = [chunk async for chunk in stream]


async def test_alternatives_that_are_no_whole_characters_are_told_apart(client, worker, sdk, tokenizer_path) -> None:
    tokenizer = Tokenizer.load(tokenizer_path)
    halves = [i for i in range(512) if tokenizer.decode([i]) == "\ufffd"][:3]
    asking = asyncio.create_task(sdk.completions.create(**BODY, logprobs=3))
    job_id = await only_job(client)
    worker.start(job_id)
    top = [[token_id, -float(rank)] for rank, token_id in enumerate(halves)]
    worker.say(job_id, " x", logprobs={"logprob": -0.5, "top": top})
    worker.end(job_id)
    (told,) = (await asking).choices[0].logprobs.top_logprobs
    assert list(told.values()) == [0.0, -1.0, -2.0]
    assert all(re.fullmatch(r"bytes:\\x[0-9a-f]{2}", text) for text in told)


async def test_what_load_generators_ask_for_is_taken(client, worker) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = BODY | {"stream": True, "stream_options": options, "stop": None, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        worker.run(await only_job(client), " x")
        *_, usage, done = [event.data async for event in events(response)]
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 1, "[DONE]")


async def test_every_spelling_of_one_prompt_is_taken(client, worker) -> None:
    for prompt in ("the mill", ["the mill"], [5, 6], [[5, 6]]):
        body = {"model": "tiny", "prompt": prompt, "user": "me", "n": 1, "suffix": None, "tier": "low"}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        job_id = await only_job(client)
        job = (await client.get(f"/v1/jobs/{job_id}")).json()
        assert (job["tier"], job["max_tokens"]) == ("low", 16)
        worker.run(job_id, " x")
        assert (await asking).json()["choices"][0]["text"] == " x"
        await client.delete(f"/v1/jobs/{job_id}")
