"""Batches of responses with the official client: each line is the response that a request would have made."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.ids import public_id
from db.models import BatchLine, Status
from tests.api.hand_worker import HandWorker
from tests.chat_templates import QWEN
from tests.openai.batch_world import BatchWorld
from tests.openai.test_response_tools import CALL, WEATHER
from tests.openai.test_responses import job_of

URL = "/v1/responses"
CITY = {
    "type": "json_schema",
    "name": "city",
    "schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def worker(make_worker) -> HandWorker:
    """Serves a model whose template teaches calls."""
    made: HandWorker = make_worker(chat_template=QWEN, max_model_len=2048, num_blocks=256)
    return made


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "tiny", "input": "the mill", "max_output_tokens": 64} | body
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": fields}


def jobs_of(world: BatchWorld) -> dict[str, str]:
    """The jobs of the lines that have some."""
    with Session(world.engine) as session:
        lines = session.scalars(select(BatchLine).where(BatchLine.job_id.is_not(None)))
        return {each.custom_id: public_id("job_", each.job_id) for each in lines}


async def replies(world: BatchWorld, file_id: str | None) -> dict[str, dict[str, Any]]:
    """What a file says of each line: its status code and its body."""
    return {each["custom_id"]: each["response"] for each in await world.content(file_id)}


async def test_a_line_is_answered_with_the_response_as_it_can_be_got(client, sdk, world) -> None:
    lines = [
        line("text", instructions="Be brief.", metadata={"k": "v"}),
        line("schema", text={"format": CITY}),
        line("tool", tools=[WEATHER]),
        line("short", background=True),
        line("wrong", text={"format": {"type": "xml"}}),
    ]
    batch_id = await world.begin(lines, endpoint=URL)
    jobs = jobs_of(world)
    world.worker.run(jobs["text"], " turns", " on")
    world.worker.run(jobs["schema"], '{"city": ', '"Ulm"}')
    world.worker.run(jobs["tool"], *CALL)
    world.worker.start(jobs["short"])
    world.worker.say(jobs["short"], " turns")
    world.worker.end(jobs["short"], reason="length")
    batch = await world.run_to_end(batch_id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 4, 1)

    told = await replies(world, batch.output_file_id)
    for reply in told.values():
        assert reply["status_code"] == 200
        assert reply["body"] == (await client.get(f"{URL}/{reply['body']['id']}")).json()
    answers = {name: Response.model_validate(reply["body"]) for name, reply in told.items()}
    assert (answers["text"].output_text, answers["text"].metadata) == (" turns on", {"k": "v"})
    assert (answers["text"].instructions, answers["text"].service_tier) == ("Be brief.", "flex")
    assert json.loads(answers["schema"].output_text) == {"city": "Ulm"}
    assert answers["schema"].text.format.name == "city"
    call = answers["tool"].output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Ulm"})
    assert (answers["short"].status, answers["short"].incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert batch.usage.output_tokens == sum(answer.usage.output_tokens for answer in answers.values())

    refused = (await replies(world, batch.error_file_id))["wrong"]
    with pytest.raises(openai.BadRequestError) as raised:
        await sdk.responses.create(**lines[-1]["body"])
    assert (refused["status_code"], refused["body"]["error"]) == (400, raised.value.body)


async def test_a_line_is_held_to_its_schema_as_a_request_is(sdk, world) -> None:
    asked = await sdk.responses.create(**line("a", text={"format": CITY})["body"], background=True)
    await world.begin([line("a", text={"format": CITY})], endpoint=URL)
    by_request, by_line = (world.worker.start(job_id) for job_id in (job_of(asked.id), jobs_of(world)["a"]))
    assert by_line.sampling.structured_output == by_request.sampling.structured_output is not None
    assert by_line.prompt_token_ids == by_request.prompt_token_ids


async def test_a_line_whose_job_fails_is_in_the_error_file(world) -> None:
    batch_id = await world.begin([line("a")], endpoint=URL)
    [job_id] = world.jobs(Status.QUEUED)
    world.worker.start(job_id)
    world.worker.end(job_id, Status.FAILED, error_code="engine_error", error_message="it broke")
    batch = await world.run_to_end(batch_id)
    assert (batch.status, batch.output_file_id) == ("completed", None)
    reply = (await replies(world, batch.error_file_id))["a"]
    assert (reply["status_code"], reply["body"]["error"]["code"]) == (500, "engine_error")


async def test_the_response_of_a_line_is_cancelled_by_a_call(sdk, world) -> None:
    await world.begin([line("a")], endpoint=URL)
    [job_id] = world.jobs(Status.QUEUED)
    assert (await sdk.responses.cancel(job_id.replace("job_", "resp_"))).status == "cancelled"


async def test_a_line_may_follow_a_response_of_its_tenant_that_has_ended(sdk, stranger, world) -> None:
    first = await sdk.responses.create(**line("first")["body"], background=True)
    running = await sdk.responses.create(**line("running")["body"], background=True)
    foreign = (await stranger.post(URL, json=line("foreign")["body"] | {"background": True})).json()
    world.worker.run(job_of(first.id), " turns")
    world.worker.run(job_of(foreign["id"]), " turns")
    before = {"follows": first.id, "too soon": running.id, "foreign": foreign["id"], "nobody's": "resp_" + 32 * "0"}
    lines = [line(name, input="and then?", previous_response_id=response_id) for name, response_id in before.items()]
    batch_id = await world.begin(lines, endpoint=URL)
    assert set(jobs_of(world)) == {"follows"}
    batch = await world.run_to_end(batch_id)
    answer = (await replies(world, batch.output_file_id))["follows"]["body"]
    counted = await sdk.responses.input_tokens.count(model="tiny", input="and then?", previous_response_id=first.id)
    assert answer["previous_response_id"] == first.id and answer["usage"]["input_tokens"] == counted.input_tokens
    refused = await replies(world, batch.error_file_id)
    assert {name: (reply["status_code"], reply["body"]["error"]["code"]) for name, reply in refused.items()} == {
        "too soon": (400, "previous_response_not_ended"),
        "foreign": (404, "response_not_found"),
        "nobody's": (404, "response_not_found"),
    }


async def test_a_response_that_was_not_to_be_kept_is_in_the_output_and_nowhere_else(client, sdk, world) -> None:
    batch_id = await world.begin([line("gone", store=False), line("kept")], endpoint=URL)
    jobs = jobs_of(world)
    batch = await world.run_to_end(batch_id)
    told = await replies(world, batch.output_file_id)
    assert [reply["status_code"] for reply in told.values()] == [200, 200]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(told["gone"]["body"]["id"])
    assert (await client.get(f"/v1/jobs/{jobs['gone']}")).status_code == 404
    assert (await sdk.responses.retrieve(told["kept"]["body"]["id"])).output_text == " turns"


async def test_a_line_of_a_batch_of_responses_cannot_ask_for_a_stream(sdk, world) -> None:
    batch_id = await world.create([line("a"), line("b", stream=True)], endpoint=URL)
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    [error] = batch.errors.data
    assert (batch.status, error.line, error.param) == ("failed", 2, "body.stream")
    assert "'body.stream' cannot be true" in error.message
