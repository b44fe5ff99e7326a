"""Tools of chat completions: shown to the model, held to when one must be called, and read from what it writes."""

import asyncio
import json
from typing import Any

import pytest

from tests import chat_templates
from tests.api.hand_worker import HandWorker
from tests.api.waiting import only_job
from workers.text.tokenizer import Tokenizer

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is the weather in Ulm?"}],
    "max_completion_tokens": 64,
    "tools": [WEATHER, NOW],
}
CALL = ("<tool_call>", '\n{"name": "get_', 'weather", "arguments": {"city"', ': "Ulm"}', "}\n</tool_call>")
CALL_NOW = ("\n<tool_call>\n", '{"name": "now", "arguments": {}}', "\n</tool_call>")


@pytest.fixture
def worker(make_worker) -> HandWorker:
    return make_worker(max_model_len=4096, num_blocks=1024, chat_template=chat_templates.QWEN)


async def test_the_prompt_shows_the_tools_and_a_call_comes_back(client, worker, sdk, tokenizer_path) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY))
    claimed = worker.start(job_id := await only_job(client))
    prompt = Tokenizer.load(tokenizer_path).decode(claimed.prompt_token_ids, skip_special_tokens=False)
    shown = [json.loads(line) for line in prompt.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    no_parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    assert shown == [WEATHER, {"type": "function", "function": {"name": "now", "parameters": no_parameters}}]
    assert claimed.sampling.structured_output is None, "whether it calls is the model's choice"
    worker.say(job_id, "I ", "look.\n", *CALL, *CALL_NOW)
    worker.end(job_id)
    choice = (await asking).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name, json.loads(first.function.arguments)) == (
        *("function", "get_weather"),
        {"city": "Ulm"},
    )
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert first.id.startswith("call_") and first.id != second.id


async def test_the_answer_can_be_sent_back_as_it_came(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY))
    job_id = await only_job(client)
    worker.run(job_id, *CALL)
    message = (await asking).choices[0].message
    assert message.content is None
    await client.delete(f"/v1/jobs/{job_id}")
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    body = BODY | {"messages": [*BODY["messages"], message, result]}
    asking = asyncio.create_task(sdk.chat.completions.create(**body))
    worker.run(await only_job(client), "It rains.")
    choice = (await asking).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("It rains.", None, "stop")


async def test_a_streamed_call_comes_in_pieces_with_the_ids_of_the_whole(client, worker, sdk) -> None:
    stream = await sdk.chat.completions.create(**BODY, stream=True)
    job_id = await only_job(client)
    worker.start(job_id)
    for piece in ("I look.", *CALL, *CALL_NOW):
        worker.say(job_id, piece)
    worker.end(job_id)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    pieces = [call for delta in deltas for call in delta.tool_calls or []]
    begun = [call for call in pieces if call.id is not None]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    assert [(call.index, call.function.name) for call in begun] == [(0, "get_weather"), (1, "now")]
    arguments = ["".join(call.function.arguments for call in pieces if call.index == index) for index in (0, 1)]
    assert arguments == ['{"city": "Ulm"}', "{}"]
    repeat = await client.get(f"/v1/jobs/{job_id}")
    assert repeat.json()["output"]["text"] == "".join(("I look.", *CALL, *CALL_NOW))
    assert len({call.id for call in begun}) == 2


async def test_the_clients_own_collector_of_a_stream_gets_the_calls(client, worker, sdk) -> None:
    async def collect() -> Any:
        async with sdk.chat.completions.stream(**BODY) as stream:
            kinds = {event.type async for event in stream}
            return kinds, await stream.get_final_completion()

    asking = asyncio.create_task(collect())
    worker.run(await only_job(client), *CALL)
    kinds, completion = await asking
    (call,) = completion.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Ulm"})
    assert completion.choices[0].finish_reason == "tool_calls"
    assert "tool_calls.function.arguments.done" in kinds


async def test_a_repeated_stream_tells_the_same_calls_under_the_same_ids(client, worker) -> None:
    headers = {"Idempotency-Key": "once"}

    async def told(**options: Any) -> list[str]:
        reply = await client.post("/v1/chat/completions", json=BODY | {"stream": True}, headers=headers)
        lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
        return [call["id"] for delta in deltas for call in delta.get("tool_calls", []) if "id" in call]

    asking = asyncio.create_task(told())
    job_id = await only_job(client)
    worker.run(job_id, *CALL, *CALL_NOW)
    first = await asking
    worker.forget_stream(job_id)
    assert first == await told() and len(set(first)) == 2


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["get_weather", "now"]),
        ({"type": "function", "function": {"name": "now"}}, ["now"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]},
            },
            ["now"],
        ),
    ],
)
async def test_a_call_that_must_come_is_what_the_output_must_follow(client, worker, sdk, choice, names) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, tool_choice=choice))
    claimed = worker.start(job_id := await only_job(client))
    output = claimed.sampling.structured_output
    assert output.kind == "grammar"
    assert [name for name in ("get_weather", "now") if f'\\"{name}\\"' in output.text] == names
    worker.say(job_id, *CALL_NOW)
    worker.end(job_id)
    choice = (await asking).choices[0]
    assert (choice.message.tool_calls[0].function.name, choice.finish_reason) == ("now", "tool_calls")


async def test_without_a_choice_no_tool_is_shown_or_called(client, worker, sdk, tokenizer_path) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, tool_choice="none"))
    claimed = worker.start(job_id := await only_job(client))
    assert "get_weather" not in Tokenizer.load(tokenizer_path).decode(claimed.prompt_token_ids)
    worker.say(job_id, *CALL)
    worker.end(job_id)
    message = (await asking).choices[0].message
    assert (message.content, message.tool_calls) == ("".join(CALL), None)


async def test_one_call_at_a_time_means_one(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, parallel_tool_calls=False))
    worker.run(await only_job(client), *CALL, *CALL_NOW)
    (call,) = (await asking).choices[0].message.tool_calls
    assert call.function.name == "get_weather"


async def test_beside_a_response_format_the_output_is_either(client, worker, sdk) -> None:
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY, response_format={"type": "json_object"}))
    claimed = worker.start(job_id := await only_job(client))
    assert "start: calls | answer" in claimed.sampling.structured_output.text
    worker.say(job_id, '{"a": 1}')
    worker.end(job_id)
    assert (await asking).choices[0].message.content == '{"a": 1}'


@pytest.mark.parametrize(
    ("template", "text", "id_length"),
    [
        (chat_templates.LLAMA, '{"name": "get_weather", "parameters": {"city": "Ulm"}}', 29),
        (chat_templates.MISTRAL, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Ulm"}}]', 9),
    ],
)
async def test_other_models_spell_calls_otherwise(client, make_worker, sdk, template, text, id_length) -> None:
    worker = make_worker(max_model_len=4096, num_blocks=1024, chat_template=template)
    asking = asyncio.create_task(sdk.chat.completions.create(**BODY))
    job_id = await only_job(client)
    worker.run(job_id, *text)
    message = (await asking).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Ulm"})
    assert len(call.id) == id_length and message.content is None


async def test_a_template_that_teaches_no_calls_is_a_400_that_says_the_way_out(client, make_worker) -> None:
    make_worker(max_model_len=4096, num_blocks=1024, chat_template="{{ messages[0].content }}")
    reply = await client.post("/v1/chat/completions", json=BODY)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "tools_not_supported", "tools")
    assert "'response_format'" in error["message"]


def function(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a"} | changes}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [function(name="a b")]}, "tools[0].function.name", "match pattern"),
    ({"tools": [function(parameters=5)]}, "tools[0].function.parameters", "dictionary"),
    ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "'function'"),
    ({"tools": [function(), function()]}, "tools", "same name"),
    ({"tools": [function()] * 129}, "tools", "at most 128"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs 'tools'"),
    ({"tool_choice": "always"}, "tool_choice", "'none', 'auto' or 'required'"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice", "none of the 'tools'"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function", "is required"),
    ({"structured_output": {"regex": "a"}}, "structured_output", "'json_schema' only"),
    (
        {"tools": [function(parameters={"type": "objec"})], "tool_choice": "required"},
        "tools",
        "cannot be used",
    ),
]


async def test_a_wrong_tool_is_named_in_a_400(client, worker) -> None:
    for change, param, words in WRONG:
        reply = await client.post("/v1/chat/completions", json=BODY | change)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), error
        assert words in error["message"], error


async def test_a_job_takes_tools_and_template_variables_too(client, worker, tokenizer_path) -> None:
    sent = {name: BODY[name] for name in ("model", "messages", "tools")}
    variables = {"enable_thinking": False}
    job = (
        await client.post("/v1/jobs", json=sent | {"tool_choice": "required", "chat_template_kwargs": variables})
    ).json()
    claimed = worker.start(job["id"])
    prompt = Tokenizer.load(tokenizer_path).decode(claimed.prompt_token_ids, skip_special_tokens=False)
    assert '"name": "get_weather"' in prompt and prompt.endswith("</think>\n\n")
    assert claimed.sampling.structured_output.kind == "grammar"
    reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": "x", "tools": [NOW]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
