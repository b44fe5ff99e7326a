"""POST /v1/tokenize: the ids that a job's prompt would have, and nothing queued."""

import pytest

from tests.chat_templates import QWEN

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


async def tokenized(client, **body):
    reply = await client.post("/v1/tokenize", json={"model": "tiny"} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_prompt_has_the_token_ids_that_its_job_would_have(client, worker, submit) -> None:
    told = await tokenized(client, prompt="the mill turns")
    assert (told["count"], told["max_model_len"], told["model"]) == (len(told["token_ids"]), 64, "tiny")
    job = await submit(prompt="the mill turns")
    assert worker.start(job["id"]).prompt_token_ids == told["token_ids"]


async def test_messages_are_counted_as_the_chat_template_renders_them(client, make_worker) -> None:
    make_worker(chat_template=TEMPLATE)
    messages = [{"role": "user", "content": [{"type": "text", "text": "turn, "}, {"type": "text", "text": "mill"}]}]
    rendered = await tokenized(client, messages=messages)
    assert rendered["token_ids"] == (await tokenized(client, prompt="<user>turn, mill"))["token_ids"]


async def test_a_text_longer_than_the_model_takes_is_counted_all_the_same(client, worker) -> None:
    assert (await tokenized(client, prompt="mill " * 20_000))["count"] > 20_000
    assert (await tokenized(client, prompt=""))["count"] in (0, 1)  # one where the model has a first token
    assert (await client.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "messages"),
        ({"prompt": "a\0b"}, 400, "prompt"),
        ({"messages": [{"role": "user", "content": "a"}]}, 400, "messages"),  # it has no chat template
        ({"prompt": "a", "model": "other"}, 404, "model"),
        ({"prompt": "a", "detokenize": True}, 400, "detokenize"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused(client, worker, body, status, param) -> None:
    reply = await client.post("/v1/tokenize", json={"model": "tiny"} | body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


async def test_tools_and_template_variables_count_as_a_job_has_them(client, make_worker) -> None:
    worker = make_worker(chat_template=QWEN, max_model_len=2048, num_blocks=256)
    tools = [{"type": "function", "function": {"name": "now"}}]
    messages = [{"role": "user", "content": "hi"}]
    sent = {"messages": messages, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    told = await tokenized(client, **sent)
    job = (await client.post("/v1/jobs", json={"model": "tiny", "max_tokens": 8} | sent)).json()
    assert worker.start(job["id"]).prompt_token_ids == told["token_ids"]
    assert told["count"] > (await tokenized(client, messages=messages, tools=tools))["count"]
    reply = await client.post("/v1/tokenize", json={"model": "tiny", "prompt": "x", "tools": tools})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
