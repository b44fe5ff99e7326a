"""Jobs with tools: their views and events have the calls that the model wrote, as a chat completion has them."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session

from api.tool_use import call_id
from db.models import Status, Worker
from tests import chat_templates
from tests.api.hand_worker import HandWorker, uuid_of
from tests.api.sse import Event, events
from tests.api.waiting import only_job

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ASKED = {"role": "user", "content": "What is the weather in Ulm?"}
BODY: dict[str, Any] = {"model": "tiny", "messages": [ASKED], "max_tokens": 64, "tools": [WEATHER, NOW]}
CALL = ("<tool_call>", '\n{"name": "get_', 'weather", "arguments": {"city"', ': "Ulm"}', "}\n</tool_call>")
CALL_NOW = ("\n<tool_call>\n", '{"name": "now", "arguments": {}}', "\n</tool_call>")
WRITTEN = ("I ", "look.\n", *CALL, *CALL_NOW)
CALLED = [("get_weather", '{"city": "Ulm"}'), ("now", "{}")]


@pytest.fixture
def worker(make_worker) -> HandWorker:
    made: HandWorker = make_worker(max_model_len=4096, num_blocks=1024, chat_template=chat_templates.QWEN)
    return made


async def send(client: httpx.AsyncClient, **fields: Any) -> str:
    reply = await client.post("/v1/jobs", json=BODY | fields)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


async def output_of(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    output: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}")).json()["output"]
    return output


async def events_of(client: httpx.AsyncClient, job_id: str, *, after: int | None = None) -> list[Event]:
    at = "" if after is None else f"?after={after}"
    return [event async for event in events(await client.get(f"/v1/jobs/{job_id}/events{at}"))]


def called(output: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in output["tool_calls"] or []]


async def test_what_is_called_stands_beside_the_text_and_can_be_sent_back(client, worker) -> None:
    worker.run(job_id := await send(client), *WRITTEN)
    output = await output_of(client, job_id)
    assert (output["text"], output["content"]) == ("".join(WRITTEN), "I look.")
    assert (called(output), output["choices"]) == (CALLED, None)
    assert [call["type"] for call in output["tool_calls"]] == ["function"] * 2
    ids = [call["id"] for call in output["tool_calls"]]
    assert ids == [call_id("hermes", uuid_of(job_id), 0, index) for index in (0, 1)]
    said = {"role": "assistant", "content": output["content"], "tool_calls": output["tool_calls"]}
    results = [{"role": "tool", "tool_call_id": each, "content": "rain"} for each in ids]
    worker.run(then := await send(client, messages=[ASKED, said, *results]), "It rains.")
    output = await output_of(client, then)
    assert (output["text"], output["content"], output["tool_calls"]) == ("It rains.", "It rains.", None)


async def test_each_of_several_outputs_has_its_own_calls(client, worker) -> None:
    job_id = await send(client, n=2)
    words = ("I", " call", " no", " one", ".")
    worker.run(job_id, *(piece for pair in zip(words, CALL, strict=True) for piece in pair))
    output = await output_of(client, job_id)
    assert (output["content"], output["tool_calls"]) == ("I call no one.", None)
    first, second = output["choices"]
    assert (called(first), first["content"]) == ([], "I call no one.")
    assert (called(second), second["content"]) == (CALLED[:1], None)
    assert second["tool_calls"][0]["id"] == call_id("hermes", uuid_of(job_id), 1, 0)


async def test_a_call_that_must_come_is_what_the_output_must_follow(client, worker) -> None:
    claimed = worker.start(await send(client, tool_choice={"type": "function", "function": {"name": "now"}}))
    assert claimed.sampling.structured_output is not None
    grammar = claimed.sampling.structured_output.text
    assert "now" in grammar and "get_weather" not in grammar


async def test_only_one_call_is_read_where_only_one_may_be(client, worker) -> None:
    worker.run(job_id := await send(client, parallel_tool_calls=False), *WRITTEN)
    assert called(await output_of(client, job_id)) == CALLED[:1]


async def test_without_tools_what_looks_like_a_call_is_text(client, worker) -> None:
    for fields in ({"tools": []}, {"tool_choice": "none"}):
        worker.run(job_id := await send(client, **fields), *CALL)
        output = await output_of(client, job_id)
        assert (output["text"], output["content"], output["tool_calls"]) == ("".join(CALL), None, None)
        assert all("delta" not in event.data for event in await events_of(client, job_id))


async def test_calls_can_be_read_when_the_model_is_gone(client, worker, engine: Engine) -> None:
    worker.run(job_id := await send(client), *WRITTEN)
    with Session(engine) as session, session.begin():
        session.execute(delete(Worker))
    assert called(await output_of(client, job_id)) == CALLED


async def test_a_job_that_was_cut_short_shows_what_it_had_called(client, worker) -> None:
    worker.start(job_id := await send(client))
    worker.say(job_id, *CALL[:3])
    worker.end(job_id, Status.FAILED, error_code="engine_error", error_message="it broke")
    assert called(await output_of(client, job_id)) == [("get_weather", '{"city"')]


async def test_the_job_behind_a_chat_completion_has_the_calls_of_its_answer(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
    worker.run(job_id := await only_job(client), *WRITTEN)
    message = (await asking).json()["choices"][0]["message"]
    output = await output_of(client, job_id)
    assert (output["content"], output["tool_calls"]) == (message["content"], message["tool_calls"])


async def test_a_replay_reads_its_calls_too(client, worker) -> None:
    worker.run(job_id := await send(client), *WRITTEN)
    replay = (await client.post(f"/v1/jobs/{job_id}/replay")).json()["id"]
    worker.run(replay, *WRITTEN)
    ours, theirs = await output_of(client, replay), await output_of(client, job_id)
    assert called(ours) == called(theirs) == CALLED
    assert ours["tool_calls"][0]["id"] != theirs["tool_calls"][0]["id"]


async def test_each_tokens_event_says_what_it_adds_to_the_message(client, worker) -> None:
    worker.run(job_id := await send(client), *WRITTEN)
    told = await events_of(client, job_id)
    assert [event.number for event in told] == list(range(len(WRITTEN) + 3))
    tokens = [event.data for event in told if event.name == "job.token"]
    assert [token["text"] for token in tokens] == list(WRITTEN)
    deltas = [token["delta"] or {} for token in tokens]
    assert tokens[2]["delta"] is None, "a marker adds nothing yet"
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    output = told[-1].data["output"]
    assert [(call["index"], call["id"]) for call in pieces if "id" in call] == [
        (index, call["id"]) for index, call in enumerate(output["tool_calls"])
    ]
    arguments = ["".join(call["function"]["arguments"] for call in pieces if call["index"] == i) for i in (0, 1)]
    assert [json.loads(each) for each in arguments] == [{"city": "Ulm"}, {}]
    assert called(output) == CALLED


async def test_every_cursor_resumes_within_a_call_from_redis_and_from_postgres(client, worker) -> None:
    worker.run(job_id := await send(client, n=2), *(piece for piece in WRITTEN for _ in range(2)))
    live = await events_of(client, job_id)
    for cursor in range(len(live) - 1):
        assert await events_of(client, job_id, after=cursor) == live[cursor + 1 :]
    worker.forget_stream(job_id)
    for cursor in range(len(live) - 1):
        assert await events_of(client, job_id, after=cursor) == live[cursor + 1 :]
