"""Functions that a response calls, with the official client: read as they are written, answered, resumed."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.api.hand_worker import HandWorker
from tests.chat_templates import QWEN
from tests.openai.test_responses import job_of

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = ["I look", ". <tool", '_call>\n{"name": "get_weather', '", "arguments": {"city"', ': "Ulm"}}\n</tool_call>']
BODY: dict[str, Any] = {"model": "tiny", "input": "What is the weather in Ulm?", "tools": [WEATHER]}


@pytest.fixture
def worker(make_worker) -> HandWorker:
    """Serves a model whose template teaches calls."""
    made: HandWorker = make_worker(chat_template=QWEN, max_model_len=2048, num_blocks=256)
    return made


async def called(sdk, worker, **options: Any):
    """A response that has called the function."""
    response = await sdk.responses.create(**BODY | options, background=True)
    worker.run(job_of(response.id), *CALL)
    return await sdk.responses.retrieve(response.id)


async def test_a_call_is_an_item_of_its_own_behind_the_text(worker, sdk) -> None:
    response = await called(sdk, worker)
    message, call = response.output
    assert (response.output_text, message.status) == ("I look.", "completed")
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Ulm"}
    assert response.tools[0].name == "get_weather" and response.tool_choice == "auto"


async def test_the_clients_own_stream_helper_reads_the_call_as_it_is_written(client, worker, sdk) -> None:
    async with sdk.responses.stream(**BODY) as stream:
        while not (jobs := (await client.get("/v1/jobs")).json()["data"]):
            pass
        worker.run(jobs[0]["id"], *CALL)
        events = [event async for event in stream]
        final = await stream.get_final_response()
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(arguments) == {"city": "Ulm"} and final.output[1].arguments == arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [item.id for item in final.output] and len(set(added)) == 2


async def test_a_stream_with_a_call_is_the_same_from_every_event(worker, sdk) -> None:
    response = await called(sdk, worker)

    async def read_on(after: int) -> list[Any]:
        stream = await sdk.responses.retrieve(response.id, stream=True, starting_after=after)
        return [event.to_dict() async for event in stream]

    first = await sdk.responses.retrieve(response.id, stream=True)
    whole = [event.to_dict() async for event in first]
    for after, rest in enumerate(await asyncio.gather(*map(read_on, range(len(whole))))):
        assert rest == whole[after + 1 :]


async def test_what_the_function_returned_goes_into_the_next_response(worker, sdk) -> None:
    first = await called(sdk, worker)
    answer = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "sunny"}
    told = await sdk.responses.create(**BODY | {"input": [answer]}, previous_response_id=first.id, background=True)
    again = await sdk.responses.input_tokens.count(
        model="tiny", tools=[WEATHER], input=[{"role": "user", "content": BODY["input"]}, *first.output, answer]
    )
    assert told.usage is None
    worker.run(job_of(told.id), "It is sunny.")
    done = await sdk.responses.retrieve(told.id)
    assert done.output_text == "It is sunny." and done.usage.input_tokens == again.input_tokens


async def test_a_call_that_was_cut_short_is_incomplete(worker, sdk) -> None:
    response = await sdk.responses.create(**BODY, background=True)
    worker.start(job_of(response.id))
    worker.say(job_of(response.id), *CALL[:-1])
    worker.end(job_of(response.id), reason="length")
    read = await sdk.responses.retrieve(response.id)
    assert (read.status, read.output[1].status) == ("incomplete", "incomplete")


async def test_a_choice_of_a_tool_that_there_is_not_is_refused(worker, sdk) -> None:
    with pytest.raises(openai.BadRequestError, match="none of the 'tools'"):
        await sdk.responses.create(**BODY, tool_choice={"type": "function", "name": "get_time"})
