"""The Python client against the real API: what it promises, also while the API is killed and answers are lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis
from sqlalchemy import Engine

from api.client import Headrace, RequestRefused, WaitTimeout
from db.models import Status
from db.settings import Settings
from tests.api.api_process import ApiProcess, api_process
from tests.api.cli_world import World, run_world
from tests.api.hand_worker import HandWorker
from tests.api.lossy_proxy import LossyProxy, lossy_proxy
from tests.api.serving import KEY


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def api(settings: Settings, keys: tuple[str, str], worker: HandWorker, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(settings, tmp_path / "api.log") as api:
        yield api


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis, tmp_path: Path) -> Iterator[World]:
    with run_world(settings, engine, redis_client, tmp_path) as world:
        yield world


@pytest.fixture
def proxy(world: World) -> Iterator[LossyProxy]:
    with lossy_proxy(world.server.port) as proxy:
        yield proxy


@pytest.fixture
def headrace(world: World) -> Iterator[Headrace]:
    with Headrace(f"http://127.0.0.1:{world.server.port}", world.key) as headrace:
        yield headrace


def test_a_stream_has_every_token_once_when_the_api_is_killed_twice_in_the_middle(
    api: ApiProcess, worker: HandWorker, pool: ThreadPoolExecutor
) -> None:
    with Headrace(api.url, KEY) as headrace:
        job_id = headrace.submit("the mill", max_tokens=32)["id"]
        worker.start(job_id)
        worker.say(job_id, "0", " 1")
        stream = headrace.stream(job_id)
        pieces = [next(stream), next(stream)]
        for text in (" 2", " 3"):
            api.kill()
            worker.say(job_id, text)
            coming = pool.submit(next, stream)
            api.start()
            pieces.append(coming.result())
        worker.say(job_id, " 4")
        worker.end(job_id)
        pieces += stream
    assert pieces == ["0", " 1", " 2", " 3", " 4"]
    assert stream.job["status"] == "succeeded" and stream.job["output"]["text"] == "0 1 2 3 4"


def test_waiting_goes_on_when_the_api_is_killed_and_started_again(
    api: ApiProcess, worker: HandWorker, pool: ThreadPoolExecutor
) -> None:
    with lossy_proxy(api.port) as proxy, Headrace(proxy.url, KEY) as headrace:
        job_id = headrace.submit("the mill", max_tokens=32)["id"]
        worker.start(job_id)
        waiting = pool.submit(headrace.wait, job_id)
        proxy.wait_for(b"GET /v1/jobs/job_")
        api.kill()
        worker.say(job_id, "done")
        worker.end(job_id)
        api.start()
        job = waiting.result()
    assert (job["status"], job["output"]["text"]) == ("succeeded", "done")


def test_a_submit_whose_answers_are_lost_makes_one_job(world: World, proxy: LossyProxy) -> None:
    proxy.lose(b"POST /v1/jobs ", times=2)
    with Headrace(proxy.url, world.key) as headrace:
        job = headrace.submit("the mill", max_tokens=4)
        assert [each["id"] for each in headrace.jobs()] == [job["id"]]


def test_a_batch_whose_answers_are_lost_is_made_once(world: World, proxy: LossyProxy) -> None:
    proxy.lose(b"POST /v1/batches ", times=1)
    proxy.lose(b"POST /v1/files ", times=1)
    with Headrace(proxy.url, world.key) as headrace:
        batch = headrace.batch({"a": {"model": "tiny", "prompt": "the mill"}}, endpoint="/v1/completions")
    with httpx.Client(base_url=proxy.url, headers={"Authorization": f"Bearer {world.key}"}) as client:
        assert [each["id"] for each in client.get("/v1/batches").json()["data"]] == [batch.id]


def test_running_a_job_is_submitting_it_and_waiting_for_its_end(
    world: World, headrace: Headrace, pool: ThreadPoolExecutor
) -> None:
    running = pool.submit(headrace.run, "the mill", max_tokens=4, metadata={"chapter": "1"})
    while not (found := list(headrace.jobs(metadata={"chapter": "1"}))):
        pass
    world.worker.run(found[0]["id"], "turns")
    assert running.result()["output"]["text"] == "turns"


def test_a_wait_that_takes_too_long_ends_and_the_job_goes_on(world: World, headrace: Headrace) -> None:
    job_id = headrace.submit("the mill", max_tokens=4)["id"]
    for timeout in (0, 0.05, 1.1):
        with pytest.raises(WaitTimeout, match=f"{job_id} is still queued. It goes on"):
            headrace.wait(job_id, timeout=timeout)
    world.worker.run(job_id, "turns")
    assert headrace.wait(job_id, timeout=0)["status"] == "succeeded"


def test_a_stream_tells_how_its_job_ended(world: World, headrace: Headrace) -> None:
    job_id = headrace.submit("the mill", max_tokens=4)["id"]
    world.worker.start(job_id)
    world.worker.say(job_id, "half", "", " a")
    world.worker.end(job_id, Status.FAILED, error_code="bad_logits", error_message="The logits were not numbers.")
    stream = headrace.stream(job_id)
    with pytest.raises(RuntimeError, match="read to the end"):
        print(stream.job)
    assert list(stream) == ["half", " a"]
    assert (stream.job["status"], stream.job["error"]["code"]) == ("failed", "bad_logits")


def test_a_stream_of_a_job_without_token_events_is_one_piece(world: World, headrace: Headrace) -> None:
    job_id = headrace.submit("the mill", max_tokens=4, stream=False)["id"]
    world.worker.run(job_id, "quiet", " one")
    assert list(headrace.stream(job_id)) == ["quiet one"]


def test_a_stream_of_several_outputs_is_the_first_one_and_its_job_has_all(world: World, headrace: Headrace) -> None:
    job_id = headrace.submit("the mill", max_tokens=4, n=2)["id"]
    world.worker.run(job_id, "one", "ein", " mill", "e Mühle")
    stream = headrace.stream(job_id)
    assert list(stream) == ["one", " mill"]
    assert [choice["text"] for choice in stream.job["output"]["choices"]] == ["one mill", "eine Mühle"]


def test_jobs_are_listed_over_pages_by_what_is_asked(world: World, headrace: Headrace) -> None:
    ids = [headrace.submit("the mill", max_tokens=1, tier="low")["id"] for _ in range(101)]
    headrace.submit("the mill", max_tokens=1)
    assert [job["id"] for job in headrace.jobs(tier="low", status="queued")] == ids[::-1]
    assert [job["id"] for job in headrace.jobs(tier="low", limit=2)] == ids[:-3:-1]


def test_a_cancelled_job_is_replayed_alone_and_with_all_like_it(world: World, headrace: Headrace) -> None:
    job_id = headrace.submit("the mill", max_tokens=4)["id"]
    assert headrace.cancel(job_id)["status"] == "cancelled"
    assert headrace.replay(job_id)["replay_of"] == job_id
    assert list(headrace.replay_all(status="cancelled")) == [], "it was replayed"
    (outcome,) = headrace.replay_all(status="cancelled", include_replayed=True, run_for=60)
    assert outcome["job_id"] == job_id and headrace.get(outcome["replay_id"])["run_for"] == 60


def test_what_the_api_refuses_is_its_message_and_code(world: World, headrace: Headrace) -> None:
    with pytest.raises(RequestRefused, match="max_tokens") as refused:
        headrace.submit("the mill", max_tokens=1000)
    assert (refused.value.status, refused.value.hint) == (400, None) and refused.value.request_id
