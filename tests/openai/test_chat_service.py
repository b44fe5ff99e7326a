"""Chat from the `openai` client through a real worker and back: a model that knows nothing, held to forms."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests import chat_templates
from tests.servers import Servers
from tests.workers.service import Service, running_service
from tests.workers.worker_process import WorkerProcess, make_settings

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"gauge": {"enum": ["Ulm", "Passau"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["gauge", "days"],
    "additionalProperties": False,
}
LEVEL: Any = {"type": "function", "function": {"name": "water_level", "parameters": SCHEMA}}
HELLO: Any = [{"role": "user", "content": "How high is the water at Ulm?"}]


@pytest.fixture(scope="module")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("chat")
    settings = make_settings(servers, directory, dtype="float32", chat_template=chat_templates.QWEN)
    with running_service(settings) as service, WorkerProcess(settings, Path(directory) / "worker.log"):
        [job_id] = service.jobs.submit([[5, 80]], max_tokens=1)  # before any row of a worker there is no model
        service.jobs.wait_ended([job_id])
        yield service


@pytest.fixture
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key) as sdk:
        yield sdk


@pytest.fixture
def body(service: Service) -> dict[str, Any]:
    return {"model": service.settings.served_name, "messages": HELLO, "max_completion_tokens": 200}


def test_a_call_that_must_come_comes_with_arguments_as_their_schema_says(sdk: openai.OpenAI, body: Any) -> None:
    for seed in range(3):
        options = {"tools": [LEVEL], "tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
        choice = sdk.chat.completions.create(**body, **options).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        (call,) = choice.message.tool_calls or []
        assert call.function.name == "water_level"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_a_streamed_message_is_the_whole_one(sdk: openai.OpenAI, body: Any) -> None:
    options = {"tools": [LEVEL], "tool_choice": "required", "parallel_tool_calls": False, "seed": 4}
    whole = sdk.chat.completions.create(**body, **options).choices[0].message.tool_calls
    with sdk.chat.completions.stream(**body, **options) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert whole and streamed
    assert [call.function.arguments for call in whole] == [call.function.arguments for call in streamed]


def test_an_answer_follows_its_schema(sdk: openai.OpenAI, body: Any) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "level", "schema": SCHEMA}}
    content = sdk.chat.completions.create(**body, response_format=wanted).choices[0].message.content
    jsonschema.validate(json.loads(content or ""), SCHEMA)


def test_a_stop_text_ends_a_message_and_choices_differ(sdk: openai.OpenAI, body: Any) -> None:
    choices = sdk.chat.completions.create(**body | {"max_completion_tokens": 12}, n=3, logprobs=True).choices
    texts = [choice.message.content or "" for choice in choices]
    assert len(set(texts)) == 3
    assert all(choice.logprobs and choice.logprobs.content for choice in choices)


def test_an_echo_with_logprobs_scores_a_given_text(sdk: openai.OpenAI, service: Service) -> None:
    asked = {"model": service.settings.served_name, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    both = sdk.completions.create(prompt=[[5, 80, 33, 7], [9, 80]], **asked)
    alone = sdk.completions.create(prompt=[9, 80], **asked)
    told = both.choices[1].logprobs
    assert told is not None and told == alone.choices[0].logprobs
    assert told.token_logprobs is not None and told.token_logprobs[0] is None and len(told.token_logprobs) == 3
    assert both.choices[0].logprobs is not None and len(both.choices[0].logprobs.tokens or []) == 5
