"""client.embeddings, from the unmodified `openai` package through a real worker's engine and back."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Job, Status
from tests.servers import Servers
from tests.workers.gates import Gate
from tests.workers.service import Service, running_service, sweeping
from tests.workers.worker_process import WorkerProcess, make_settings, wait_until

INPUTS = [[5 + i, 80, 33, 7 + i] for i in range(6)]


@pytest.fixture(scope="module")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("embeddings")
    settings = make_settings(servers, directory, dtype="float32")
    with running_service(settings) as service, WorkerProcess(settings, directory / "worker.log"):
        wait_ready(service)
        yield service


def wait_ready(service: Service) -> None:
    """Until a worker has told of its model: before that there is nothing to ask."""
    with sdk_of(service) as sdk:
        wait_until(lambda: service.settings.served_name in {model.id for model in sdk.models.list()}, "the model")


def sdk_of(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0)


@pytest.fixture
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with sdk_of(service) as sdk:
        yield sdk


def test_vectors_have_the_order_of_the_inputs_and_length_1(sdk: openai.OpenAI, service: Service) -> None:
    model = service.settings.served_name
    together = sdk.embeddings.create(model=model, input=INPUTS)
    assert [each.index for each in together.data] == list(range(len(INPUTS)))
    assert together.usage.prompt_tokens == together.usage.total_tokens == 4 * len(INPUTS)
    vectors = [tuple(each.embedding) for each in together.data]
    assert len(set(vectors)) == len(INPUTS)
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1.0] * len(INPUTS), abs=1e-5)
    [alone] = sdk.embeddings.create(model=model, input=INPUTS[3]).data
    assert alone.embedding == pytest.approx(vectors[3], abs=1e-5)


def test_floats_and_base64_are_the_same_vector(sdk: openai.OpenAI, service: Service) -> None:
    model, text = service.settings.served_name, "The miller waits; 水车 turns."
    floats, decoded, default = (
        sdk.embeddings.create(model=model, input=text, encoding_format=format).data[0].embedding
        for format in ("float", "base64", openai.omit)
    )
    assert default == pytest.approx(floats, abs=1e-6)  # the client asks for base64, and decodes it
    assert isinstance(decoded, str)  # but not where the caller asks for it
    longer = sdk.embeddings.create(model=model, input=[text, text + " On."]).data
    assert longer[0].embedding == pytest.approx(floats, abs=1e-5)
    assert longer[1].embedding != pytest.approx(floats, abs=1e-5)


async def test_the_async_client_gets_them_too(service: Service) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.key) as sdk:
        answer = await sdk.embeddings.create(model=service.settings.served_name, input=["a", "b"])
        assert len(answer.data) == 2 and answer._request_id is not None
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await sdk.embeddings.create(model=service.settings.served_name, input="a", dimensions=8)
        with pytest.raises(openai.NotFoundError, match="not served"):
            await sdk.embeddings.create(model="other", input="a")


def test_embeddings_and_completions_share_a_worker(sdk: openai.OpenAI, service: Service) -> None:
    model = service.settings.served_name
    options = {"model": model, "prompt": INPUTS[0], "max_tokens": 40, "temperature": 0}
    alone = sdk.completions.create(**options).choices[0].text
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(sdk.completions.create, **options) for _ in range(2)]
        embedding = [pool.submit(sdk.embeddings.create, model=model, input=INPUTS) for _ in range(2)]
        assert [each.result().choices[0].text for each in writing] == [alone] * 2
        first, second = (each.result().data[5].embedding for each in embedding)
        assert first == pytest.approx(second, abs=1e-5)


def test_a_job_of_their_kind_has_the_vector_that_the_client_gets(sdk: openai.OpenAI, service: Service) -> None:
    model = service.settings.served_name
    body = {"model": model, "kind": "embedding", "prompt": INPUTS[2]}
    job = service.client.post("/v1/jobs", json=body).raise_for_status().json()
    ended = service.client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=60"}).json()
    [expected] = sdk.embeddings.create(model=model, input=INPUTS[2]).data
    assert ended["output"]["embedding"] == pytest.approx(expected.embedding, abs=1e-5)
    assert ended["usage"] == {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4, "cached_tokens": 0}


def test_embeddings_outlive_the_worker_that_computes_them(servers: Servers, tmp_path: Path) -> None:
    """Those that it had told are not computed again; the client waits, and gets all of them."""
    settings = make_settings(servers, tmp_path, dtype="float32", token_budget=16, sweep_seconds=0.5)
    inputs = [[5 + i] + [7 + (i * j) % 300 for j in range(600)] for i in range(12)]
    with (
        running_service(settings) as service,
        sweeping(service.jobs),
        ThreadPoolExecutor(1) as pool,
        sdk_of(service) as sdk,
    ):
        gate = Gate(service.jobs.redis, "computed", settings.served_name)
        gate.close()
        with WorkerProcess(settings, tmp_path / "first.log", app="tests.workers.gated_app") as first:
            wait_ready(service)
            asking = pool.submit(sdk.embeddings.create, model=settings.served_name, input=inputs)
            gate.wait()
            gate.let()  # the first of them are committed; the next ones are computed, and will not be
            first.kill()
        gate.open()
        assert 0 < num_ended(service) < len(inputs)
        with WorkerProcess(settings, tmp_path / "second.log"):
            found = asking.result(120).data
            attempts = attempts_of(service)
            expected = sdk.embeddings.create(model=settings.served_name, input=inputs).data
        assert min(attempts) == 1 and max(attempts) > 1
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-5)


def num_ended(service: Service) -> int:
    with Session(service.jobs.engine) as session:
        ended = select(func.count()).where(Job.model == service.settings.served_name, Job.status == Status.SUCCEEDED)
        return session.scalars(ended).one()


def attempts_of(service: Service) -> list[int]:
    with Session(service.jobs.engine) as session:
        return list(session.scalars(select(Job.attempt).where(Job.model == service.settings.served_name)))
