"""Several outputs of one prompt, from the unmodified `openai` client through a real worker and back."""

from collections.abc import Iterator

import openai
import pytest

from db.models import Status
from db.sampling import Sampling
from tests.servers import Servers
from tests.workers.service import WEBHOOK, Service, running_service
from tests.workers.worker_process import LONG, WorkerProcess, make_settings

PROMPT = [5, 80, 33, 7]


@pytest.fixture(scope="module")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("choices")
    settings = make_settings(servers, directory, dtype="float32")
    with running_service(settings) as service, WorkerProcess(settings, directory / "worker.log"):
        # Before any row of a worker there is no model to submit to.
        [job_id] = service.jobs.submit([PROMPT], max_tokens=1)
        service.jobs.wait_ended([job_id])
        yield service


@pytest.fixture
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key) as sdk:
        yield sdk


def test_a_streamed_completion_has_the_texts_of_the_whole_one(sdk: openai.OpenAI, service: Service) -> None:
    body = {"model": service.settings.served_name, "prompt": PROMPT, "max_tokens": 12, "n": 3, "seed": 4}
    whole = sdk.completions.create(**body)
    texts, reasons = [""] * 3, [None] * 3
    for chunk in sdk.completions.create(**body, stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert [choice.text for choice in whole.choices] == texts
    assert [choice.finish_reason for choice in whole.choices] == reasons
    assert len(set(texts)) == 3
    assert None not in reasons


def test_the_first_of_several_outputs_is_the_one_of_a_request_for_one(sdk: openai.OpenAI, service: Service) -> None:
    body = {"model": service.settings.served_name, "prompt": PROMPT, "max_tokens": 12, "seed": -9}
    several, one = sdk.completions.create(**body, n=2), sdk.completions.create(**body)
    assert several.choices[0].text == one.choices[0].text
    assert several.usage is not None and one.usage is not None
    assert several.usage.completion_tokens > one.usage.completion_tokens


def test_a_beam_search_gives_its_best_outputs(sdk: openai.OpenAI, service: Service) -> None:
    beams = {"num_beams": 4, "ignore_eos": True}
    body = {"model": service.settings.served_name, "prompt": PROMPT, "max_tokens": 8, "logprobs": 0}
    found = sdk.completions.create(**body, n=2, extra_body=beams)
    greedy = sdk.completions.create(**body, temperature=0, extra_body={"ignore_eos": True})
    scores = [sum(choice.logprobs.token_logprobs) for choice in (*found.choices, *greedy.choices) if choice.logprobs]
    assert scores[0] >= scores[1] and scores[0] >= scores[2]
    assert [choice.finish_reason for choice in found.choices] == ["length"] * 2


def test_a_cancelled_job_keeps_what_was_written_of_each_output(service: Service) -> None:
    sampling = Sampling(n=3, ignore_eos=True)
    [job_id] = service.jobs.submit([PROMPT], sampling=sampling, max_tokens=LONG, webhook_url=WEBHOOK)
    service.jobs.wait_streamed([job_id], 9)
    job = service.cancel(job_id)
    assert job["status"] == Status.CANCELLED
    choices = job["output"]["choices"]
    assert sum(len(choice["token_ids"]) for choice in choices) == job["usage"]["completion_tokens"] >= 9
    tokens = [event.data for event in service.events(job_id) if event.type == "job.token"]
    assert [each["choice"] for each in tokens] == [i % 3 for i in range(len(tokens))]
    for choice in choices:
        assert choice["text"] == "".join(each["text"] for each in tokens if each["choice"] == choice["index"])
        assert choice["finish_reason"] is None
