"""POST /v1/chat/completions with the unmodified `openai` client, and what that client does not show."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests import chat_templates
from tests.api.hand_worker import HandWorker
from tests.api.waiting import only_job
from workers.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
BODY: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 8}


@pytest.fixture
def worker(make_worker) -> HandWorker:
    return make_worker(max_model_len=4096, num_blocks=1024, chat_template=chat_templates.QWEN)


async def test_the_openai_client_gets_a_whole_message(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, seed=5))
    job_id = await only_job(client)
    job = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (job["kind"], job["max_tokens"], job["seed"], job["tier"]) == ("chat", 8, 5, "normal")
    worker.run(job_id, " Good", "", " day")
    completion = await asking
    choice = completion.choices[0]
    assert (completion.id, completion.object) == (job_id.replace("job_", "chatcmpl-"), "chat.completion")
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", " Good day", "stop")
    assert (choice.message.tool_calls, choice.logprobs, completion.service_tier) == (None, None, "default")
    assert "tool_calls" not in choice.message.model_fields_set
    assert completion.usage.completion_tokens == 3
    assert completion.usage.prompt_tokens == completion.usage.total_tokens - 3 > 10
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


async def test_the_client_gets_the_role_then_the_text_then_the_reason_then_the_usage(client, worker, sdk) -> None:
    stream = await sdk.chat.completions.create(**BODY, stream=True, stream_options={"include_usage": True})
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " a")
    role, first = await anext(stream), await anext(stream)
    assert (role.choices[0].delta.role, role.choices[0].delta.content) == ("assistant", "")
    assert (first.choices[0].delta.content, first.choices[0].finish_reason, first.usage) == (" a", None, None)
    worker.say(job_id, "", " b")
    worker.end(job_id)
    rest = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in rest[:-1]] == [" b", None]
    assert [chunk.choices[0].finish_reason for chunk in rest[:-1]] == [None, "stop"]
    assert (rest[-1].choices, rest[-1].usage.completion_tokens) == ([], 3)
    assert {chunk.object for chunk in (role, first, *rest)} == {"chat.completion.chunk"}
    assert {chunk.id for chunk in (role, first, *rest)} == {job_id.replace("job_", "chatcmpl-")}


async def test_the_clients_own_collector_of_a_stream_gets_the_message(client, worker, sdk) -> None:
    async def collect() -> Any:
        async with sdk.chat.completions.stream(**BODY) as stream:
            async for _ in stream:
                pass
            return await stream.get_final_completion()

    asking = asyncio.create_task(collect())
    worker.run(await only_job(client), " Good", " day")
    message = (await asking).choices[0].message
    assert (message.role, message.content) == ("assistant", " Good day")


async def test_the_synchronous_client_works_as_well(client, worker, url, keys) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=keys[0]) as sdk:
        asking = asyncio.create_task(asyncio.to_thread(sdk.chat.completions.create, **BODY))
        worker.run(await only_job(client), " Good", " day")
        assert (await asking).choices[0].message.content == " Good day"


async def test_several_choices_are_told_apart(client, worker, sdk) -> None:
    whole = asyncio.create_task(sdk.chat.completions.create(**BODY, n=2))
    job_id = await only_job(client)
    worker.run(job_id, " a", " b", " c", " d")
    assert [(choice.index, choice.message.content) for choice in (await whole).choices] == [(0, " a c"), (1, " b d")]
    await client.delete(f"/v1/jobs/{job_id}")
    stream = await sdk.chat.completions.create(**BODY, n=2, stream=True)
    worker.run(await only_job(client), " a", " b", " c", " d")
    texts, roles, reasons = ["", ""], [0, 0], [None, None]
    async for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role is not None
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert (texts, roles, reasons) == ([" a c", " b d"], [1, 1], ["stop", "stop"])


async def test_log_probabilities_are_told_with_bytes_and_alternatives(client, worker, sdk, tokenizer_path) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, logprobs=True, top_logprobs=1))
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " x", "", logprobs={"logprob": -0.5, "top": [[300, -0.25]]})
    worker.end(job_id)
    told = (await asking).choices[0].logprobs.content
    assert [entry.logprob for entry in told] == [-0.5, -0.5]
    assert [entry.top_logprobs[0].logprob for entry in told] == [-0.25, -0.25]
    for entry in (*told, told[0].top_logprobs[0]):
        assert bytes(entry.bytes).decode(errors="replace") == entry.token or entry.token.startswith("bytes:")


async def test_a_stream_tells_each_log_probability_once(client, worker, sdk) -> None:
    stream = await sdk.chat.completions.create(**BODY, logprobs=True, stream=True)
    job_id = await only_job(client)
    worker.start(job_id)
    worker.say(job_id, " x", "", logprobs=True)
    worker.say(job_id, "", logprobs=True)
    worker.end(job_id)
    chunks = [chunk async for chunk in stream]
    told = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.logprob for entry in told] == [-0.5] * 3
    assert all(entry.top_logprobs == [] or len(entry.top_logprobs) == 1 for entry in told)


@pytest.mark.parametrize(
    ("service_tier", "tier", "used"),
    [("priority", "high", "priority"), ("auto", "normal", "default"), ("flex", "low", "flex")],
)
async def test_a_service_tier_is_a_tier_and_the_answer_says_which(
    client, worker, sdk, service_tier, tier, used
) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, service_tier=service_tier))
    job_id = await only_job(client)
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["tier"] == tier
    worker.run(job_id, " x")
    assert (await asking).service_tier == used


async def test_messages_of_every_kind_reach_the_template(client, worker, tokenizer_path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "CET"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}]},
        {"role": "user", "content": "What time?"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    variables = {"enable_thinking": False}
    body = BODY | {"messages": messages, "chat_template_kwargs": variables}
    asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    claimed = worker.start(job_id := await only_job(client))
    prompt = Tokenizer.load(tokenizer_path).decode(claimed.prompt_token_ids, skip_special_tokens=False)
    assert "<|im_start|>system\nBe brief.<|im_end|>" in prompt
    assert '<tool_call>\n{"name": "now", "arguments": {"zone": "CET"}}\n</tool_call>' in prompt
    assert "<tool_response>\nnoon\n</tool_response>" in prompt
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    worker.say(job_id, " ok")
    worker.end(job_id)
    assert (await asking).status_code == 200


async def test_without_a_number_a_message_may_take_what_there_is_room_for(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO}))
    job = (await client.get(f"/v1/jobs/{await only_job(client)}")).json()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert 4000 < job["max_tokens"] < 4096


JSON_OBJECT = {"type": "json_object"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("sent", "schema"),
    [
        (JSON_OBJECT, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "text"}, None),
    ],
)
async def test_a_response_format_is_what_the_output_must_follow(client, worker, sdk, sent, schema) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, response_format=sent))
    claimed = worker.start(job_id := await only_job(client))
    output = claimed.sampling.structured_output
    assert schema == (None if output is None else json.loads(output.text))
    worker.say(job_id, '{"a": 1}')
    worker.end(job_id)
    assert (await asking).choices[0].message.content == '{"a": 1}'


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "needs 'content'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "needs 'tool_call_id'"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "'text'"),
    ({"max_tokens": 9}, "max_tokens", "another number"),
    ({"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'"),
    ({"response_format": {"type": "xml"}}, "response_format", "'json_schema'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objec"}}}},
        "response_format",
        "Invalid type: objec",
    ),
    ({"response_format": JSON_OBJECT, "structured_output": {"regex": "a"}}, "structured_output", "send one of them"),
    ({"functions": []}, "functions", "send 'tools'"),
    ({"modalities": ["audio"]}, "modalities", "nothing else"),
    ({"service_tier": "fast", "tier": "low"}, "service_tier", "'tier' says another"),
    ({"prompt": "x"}, "prompt", "not a known field"),
]


async def test_a_wrong_or_unsupported_field_is_named_in_a_400(client, worker) -> None:
    for change, param, words in WRONG:
        reply = await client.post("/v1/chat/completions", json=BODY | change)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), error
        assert words in error["message"], error
    assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_without_a_chat_template_it_is_a_400_that_says_so(client, make_worker) -> None:
    make_worker()
    reply = await client.post("/v1/chat/completions", json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_chat_template")
