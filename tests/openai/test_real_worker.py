"""The official client and a real worker: what a chain of responses costs, and what is seen of a worker's death."""

from collections.abc import Iterator

import openai
import pytest

from tests.chat_templates import PLAIN
from tests.servers import Servers
from tests.workers.recovery_world import World, recovering
from tests.workers.service import Service, running_service
from tests.workers.worker_process import MIDDLING

SAME = {"seed": 3, "ignore_eos": True}
NUM_BEFORE = 20  # events that have come when the worker is killed


@pytest.fixture
def world(servers: Servers, tmp_path) -> Iterator[World]:
    with recovering(servers, tmp_path, chat_template=PLAIN) as world:
        yield world


@pytest.fixture
def service(world: World) -> Iterator[Service]:
    with running_service(world.jobs.settings) as service:
        yield service


def test_a_responses_stream_goes_on_as_if_nothing_had_happened(world: World, service: Service) -> None:
    first = world.start("first")
    world.wait_ready(first)
    body = {"model": service.settings.served_name, "input": "the mill", "max_output_tokens": MIDDLING}
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0) as sdk:
        with sdk.responses.stream(**body, extra_body=SAME) as stream:
            events = []
            for event in stream:
                events.append(event)
                if len(events) == NUM_BEFORE:
                    first.kill()
                    world.start("second")
            final = stream.get_final_response() if events[-1].type == "response.completed" else events[-1].response
        undisturbed = sdk.responses.create(**body, extra_body=SAME)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == undisturbed.output_text
    assert final.usage is not None and final.usage.output_tokens == MIDDLING


def test_a_response_computes_nothing_of_what_the_one_before_had_computed(world: World, service: Service) -> None:
    world.wait_ready(world.start("only"))
    body = {"model": service.settings.served_name, "max_output_tokens": 40, "extra_body": SAME}
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0) as sdk:
        first = sdk.responses.create(input="the mill turns by the river " * 4, **body)
        second = sdk.responses.create(input="and then?", previous_response_id=first.id, **body)
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 16
