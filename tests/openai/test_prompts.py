"""Completions of several prompts, and prompts told before their texts, with the unmodified `openai` client."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from db.models import Status
from tests.api.serving import api_with
from tests.api.waiting import all_jobs, job_in_status, only_job

BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 4}
PROMPTS = ["the mill", "the water"]


async def test_each_prompt_is_a_job_and_its_choices_follow_those_of_the_one_before(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.completions.create(**BODY, prompt=PROMPTS, n=2))
    first, second = await all_jobs(client, 2)
    worker.run(second, " c", " d")
    worker.run(first, " a", " b")
    completion = await asking
    assert [(choice.index, choice.text) for choice in completion.choices] == list(enumerate([" a", " b", " c", " d"]))
    assert completion.id == first.replace("job_", "cmpl-")
    usages = [(await client.get(f"/v1/jobs/{job_id}")).json()["usage"] for job_id in (first, second)]
    assert completion.usage.completion_tokens == 4
    assert completion.usage.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)


async def test_several_prompts_are_streamed_beside_each_other(client, worker, sdk) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await sdk.completions.create(**BODY, prompt=[[5, 6], [7]], **options)
    first, second = await all_jobs(client, 2)
    worker.start(second)
    worker.say(second, " b")
    chunk = await anext(stream)
    assert (chunk.choices[0].index, chunk.choices[0].text) == (1, " b")
    worker.end(second)
    worker.run(first, " a")
    *chunks, usage = [chunk async for chunk in stream]
    assert [chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == 0] == [" a", ""]
    reasons = {chunk.choices[0].index: chunk.choices[0].finish_reason for chunk in chunks}
    assert reasons == {0: "stop", 1: "stop"}
    assert (usage.choices, usage.usage.prompt_tokens, usage.usage.completion_tokens) == ([], 3, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_jobs_of_all_prompts(client, url, worker, stream) -> None:
    body = BODY | {"prompt": PROMPTS, "stream": stream}
    async with httpx.AsyncClient(base_url=url, headers=client.headers) as leaving:
        asking = asyncio.create_task(leaving.post("/v1/completions", json=body))
        job_ids = await all_jobs(client, 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    for job_id in job_ids:
        await job_in_status(client, job_id, "cancelled")


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_fails_is_the_answer_and_the_others_are_cancelled(client, worker, sdk, stream) -> None:
    async def ask() -> None:
        answer = await sdk.completions.create(**BODY, prompt=PROMPTS, stream=stream)
        _ = [chunk async for chunk in answer] if stream else None

    asking = asyncio.create_task(ask())
    first, second = await all_jobs(client, 2)
    worker.start(second)
    worker.end(second, Status.FAILED, error_code="broken", error_message="it broke")
    with pytest.raises(openai.APIError, match="it broke"):
        await asking
    await job_in_status(client, first, "cancelled")


async def test_all_prompts_are_taken_or_none(client, make_worker) -> None:
    make_worker()
    long = list(range(5, 80))
    reply = await client.post("/v1/completions", json=BODY | {"prompt": [[5], long]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    keyed = await client.post("/v1/completions", json=BODY | {"prompt": PROMPTS}, headers={"Idempotency-Key": "k"})
    assert (keyed.status_code, keyed.json()["error"]["param"]) == (400, "prompt")
    assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_prompts_that_are_too_many_for_the_queue_are_refused_together(settings, keys, make_worker) -> None:
    make_worker()
    async with api_with(settings, max_queued_jobs=3) as client:
        reply = await client.post("/v1/completions", json=BODY | {"prompt": ["a"] * 4})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_an_echo_puts_the_prompt_before_each_text(client, worker, sdk) -> None:
    for prompt in ("the mill", ["the mill"]):
        asking = asyncio.create_task(sdk.completions.create(**BODY, prompt=prompt, echo=True, n=2))
        job_id = await only_job(client)
        worker.run(job_id, " turns", " stops")
        assert [choice.text for choice in (await asking).choices] == ["the mill turns", "the mill stops"]
        await client.delete(f"/v1/jobs/{job_id}")


async def test_a_streamed_echo_tells_the_prompt_once(client, worker, sdk) -> None:
    stream = await sdk.completions.create(**BODY, prompt="the mill", echo=True, stream=True)
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " turns")
    assert (await anext(stream)).choices[0].text == "the mill turns"
    worker.say(job_id, " on")
    worker.end(job_id)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " on"


async def test_an_echo_with_logprobs_tells_what_the_model_thought_of_the_prompt(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.completions.create(**BODY, prompt=[300, 301, 302], echo=True, logprobs=1))
    claimed = worker.start(job_id := await only_job(client))
    assert claimed.sampling.prompt_logprobs == 1
    worker.say(job_id, " x", logprobs=True)
    thought = [{"logprob": -1.5, "top": [[7, -0.1]]}, {"logprob": -2.5, "top": [[302, -2.5]]}]
    worker.end(job_id, prompt_logprobs=thought)
    (choice,) = (await asking).choices
    told = choice.logprobs
    assert told.token_logprobs == [None, -1.5, -2.5, -0.5]
    assert [None if top is None else list(top.values()) for top in told.top_logprobs] == [None, [-0.1], [-2.5], [-0.5]]
    ends = [*told.text_offset[1:], len(choice.text)]
    pieces = [choice.text[start:end] for start, end in zip(told.text_offset, ends, strict=True)]
    assert pieces == [*told.tokens[:3], " x"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"echo": True, "logprobs": 1, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": ["x"] * 129}, "prompt"),
    ],
)
async def test_what_cannot_be_told_of_prompts_is_refused(client, worker, change, param) -> None:
    reply = await client.post("/v1/completions", json=BODY | {"prompt": PROMPTS} | change)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
