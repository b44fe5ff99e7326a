"""Cancelling a job in each of its states, through the API and with real workers: one end, one event, nothing left."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from db import queue
from db.broker import make_app
from db.jobs import Ready
from db.models import Worker
from tests.servers import Servers
from tests.workers.gates import Commands, Gate
from tests.workers.service import WEBHOOK, Service, running_service
from tests.workers.succession import Succession
from tests.workers.worker_process import LONG, PATIENCE_SECONDS, WorkerProcess, make_settings, wait_until

GATED_APP = "tests.workers.gated_app"
CHUNK = 16  # tokens: the budget of a step
SHORT, LONG_PROMPT = [5, 80, 33, 7], [9, 80, 33, 7] * 25  # one block; seven chunks beside one that runs


@dataclass
class World:
    """A model of its own. Its worker goes from test to test."""

    service: Service
    workers: Succession

    def __post_init__(self) -> None:
        self.jobs = self.service.jobs
        redis, model = self.jobs.redis, self.service.settings.served_name
        self.loading, self.step = Gate(redis, "loading", model), Gate(redis, "step", model)
        self.commands = Commands(redis, model)

    def submit(self, *submitted: list[int], **options: Any) -> list[UUID]:
        return self.jobs.submit(submitted, webhook_url=WEBHOOK, **({"max_tokens": LONG} | options))

    def publish_again(self, job_id: UUID) -> None:
        """What a submit does that is slower than its job's cancel."""
        queue.push(self.jobs.redis, [Ready.of(self.jobs.row(job_id))])

    def num_messages(self) -> int:
        return sum(queue.depths(self.jobs.redis, self.service.settings.served_name).values())

    def status(self, worker: WorkerProcess) -> str | None:
        with Session(self.jobs.engine) as session:
            return session.scalar(select(Worker.status).where(Worker.pid == worker.process.pid))

    def pool(self) -> dict[str, Any]:
        """What the worker says of its engine while that stands at a gate."""
        [stats] = make_app(self.service.settings).control.inspect(timeout=PATIENCE_SECONDS, limit=1).stats().values()
        pool: dict[str, Any] = stats["pool"]
        return pool

    def assert_next_job_runs(self) -> None:
        """The worker takes jobs, and has none but the next one."""
        [job_id] = self.submit(SHORT, max_tokens=3)
        self.service.assert_ended_once(job_id, "succeeded")
        wait_until(lambda: self.pool()["held"] == 0, "the worker to have nothing left")
        assert self.num_messages() == 0


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("cancels")
    settings = make_settings(servers, directory, kv_cache_tokens=2048, token_budget=CHUNK)  # 128 blocks
    with running_service(settings) as service:
        workers = Succession(settings, directory, app=GATED_APP)
        yield World(service, workers)
        workers.end()


@pytest.fixture(autouse=True)
def open_gates(world: World) -> Iterator[None]:
    """A test that fails at a closed one leaves none in the way of the others."""
    yield
    world.loading.open()
    world.step.open()


def test_a_job_cancelled_while_no_worker_is_up_ends_at_once_and_a_later_worker_does_not_run_it(world: World) -> None:
    world.workers.end()
    [cancelled] = world.submit(SHORT)
    answer = world.service.cancel(cancelled)
    assert (answer["status"], world.num_messages()) == ("cancelled", 0)
    world.publish_again(cancelled)
    with world.workers.worker():
        world.assert_next_job_runs()
    assert world.service.get(cancelled) == answer
    assert world.service.assert_ended_once(cancelled, "cancelled").attempt == 0


def test_a_job_cancelled_in_the_queue_never_runs_though_its_message_comes_later(world: World) -> None:
    with world.workers.worker() as worker:
        wait_until(lambda: world.status(worker) == "ready", "the worker")
        worker.freeze()  # so that both are in the queue
        cancelled, other = world.submit(SHORT, SHORT, max_tokens=3)
        answer = world.service.cancel(cancelled)
        assert (answer["status"], answer["attempt"], world.num_messages()) == ("cancelled", 0, 1)
        world.publish_again(cancelled)
        worker.thaw()
        world.service.assert_ended_once(other, "succeeded")
        world.assert_next_job_runs()
    assert world.service.get(cancelled) == answer
    assert world.service.assert_ended_once(cancelled, "cancelled").started_at is None


def test_a_job_whose_worker_died_is_cancelled_with_its_text_and_not_run_by_the_next(world: World) -> None:
    with world.workers.worker() as first:
        [cancelled] = world.submit(SHORT)
        world.jobs.wait_streamed([cancelled], 5)
        first.kill()
    num_delivered = world.jobs.num_streamed(cancelled)
    answer = world.service.cancel(cancelled)
    assert (answer["status"], answer["usage"]["completion_tokens"]) == ("cancelled", num_delivered)
    with world.workers.worker():
        world.assert_next_job_runs()
    assert world.service.get(cancelled) == answer
    assert world.service.assert_ended_once(cancelled, "cancelled").attempt == 1


def test_a_job_cancelled_while_its_worker_loads_the_model_never_runs(world: World) -> None:
    world.workers.end()
    world.loading.close()
    with world.workers.worker() as worker:
        world.loading.wait()
        wait_until(lambda: world.status(worker) == "loading", "the worker to say that it loads, from another thread")
        [cancelled] = world.submit(SHORT)
        answer = world.service.cancel(cancelled)
        assert (answer["status"], answer["attempt"]) == ("cancelled", 0)
        world.publish_again(cancelled)
        world.loading.open()
        world.assert_next_job_runs()
    assert world.service.get(cancelled) == answer
    assert world.service.assert_ended_once(cancelled, "cancelled").attempt == 0


def test_a_job_cancelled_while_its_workers_successor_loads_keeps_its_text(world: World) -> None:
    with world.workers.worker() as first:
        [cancelled] = world.submit(SHORT)
        world.jobs.wait_streamed([cancelled], 5)
        first.kill()
    num_delivered = world.jobs.num_streamed(cancelled)
    world.loading.close()
    with world.workers.worker():
        world.loading.wait()
        wait_until(lambda: world.jobs.row(cancelled).status == "queued", "the dead predecessor's job to be free")
        answer = world.service.cancel(cancelled)
        assert answer["status"] == "cancelled"
        assert answer["usage"]["completion_tokens"] >= num_delivered, "the journal may know of more than the stream"
        world.loading.open()
        world.assert_next_job_runs()
    assert world.service.get(cancelled) == answer
    assert world.service.assert_ended_once(cancelled, "cancelled").attempt == 1


@pytest.mark.parametrize(
    ("prompt", "num_steps", "num_tokens"), [(LONG_PROMPT, 3, 0), (SHORT, 4, 4)], ids=["prefilling", "decoding"]
)
def test_blocks_of_a_cancelled_job_are_free_one_step_later(
    world: World, prompt: list[int], num_steps: int, num_tokens: int
) -> None:
    with world.workers.worker():
        world.step.close()
        [other] = world.submit(SHORT, max_tokens=12)  # all of it is one block
        world.step.wait()
        alone = world.pool()
        [cancelled] = start(world, prompt)
        for _ in range(num_steps):
            world.step.let()
        both = world.pool()  # while the last of its steps is in flight
        assert (both["running"], both["free_blocks"] < alone["free_blocks"]) == (2, True)
        with ThreadPoolExecutor(1) as pool:
            since = world.commands.num()
            answer = pool.submit(world.service.cancel, cancelled)
            world.commands.wait(since=since)
            world.step.let()
            after = world.pool()
            world.step.open()
        assert after["steps"] == both["steps"] + 1
        assert (after["running"], after["free_blocks"]) == (1, alone["free_blocks"])
        assert answer.result()["usage"]["completion_tokens"] == num_tokens
        world.service.assert_ended_once(cancelled, "cancelled")
        world.service.assert_ended_once(other, "succeeded")


def start(world: World, prompt: list[int]) -> list[UUID]:
    """Submit a job to the worker whose engine stands in a step, and wait until the next step will know of it."""
    since = world.commands.num()
    job_ids = world.submit(prompt)
    world.commands.wait(since=since)
    return job_ids


def test_a_job_cancelled_while_it_is_held_until_its_blocks_are_free_never_starts(world: World) -> None:
    with world.workers.worker():
        [running] = world.submit([5] * 600, max_tokens=1400)
        world.jobs.wait_streamed([running], 1)
        [cancelled] = world.submit([6] * 1500, max_tokens=8, tier=2)
        wait_until(lambda: world.jobs.row(cancelled).status == "running", "the one that does not fit to be held")
        assert world.service.cancel(cancelled)["status"] == "cancelled"
        assert world.service.assert_ended_once(cancelled, "cancelled").num_output_tokens == 0
        [next_one] = world.submit([6] * 1500, max_tokens=8, tier=2)
        assert world.service.cancel(running)["status"] == "cancelled"
        world.service.assert_ended_once(next_one, "succeeded")
        world.service.assert_ended_once(running, "cancelled")
        world.assert_next_job_runs()


def test_what_a_worker_that_was_frozen_at_the_cancel_makes_later_is_never_seen(world: World) -> None:
    with world.workers.worker() as worker:
        world.step.close()
        [cancelled] = world.submit(SHORT, max_tokens=4)
        world.step.wait()
        for _ in range(3):
            world.step.let()  # the last token stands in flight
        world.jobs.wait_streamed([cancelled], 3)
        worker.freeze()
        answer = world.service.cancel(cancelled)
        assert (answer["status"], answer["usage"]["completion_tokens"]) == ("cancelled", 3)
        worker.thaw()
        world.step.open()
        world.assert_next_job_runs()
        assert "an end came too late" in worker.log
    assert world.service.get(cancelled) == answer
    world.service.assert_ended_once(cancelled, "cancelled")


def test_a_job_cancelled_while_its_worker_drains_lets_the_worker_go(world: World) -> None:
    with world.workers.worker() as worker:
        [cancelled] = world.submit(SHORT, max_tokens=1900)
        world.jobs.wait_streamed([cancelled], 5)
        with ThreadPoolExecutor(1) as pool:
            exit_code = pool.submit(worker.terminate)
            wait_until(lambda: world.status(worker) == "draining", "the drain to begin")
            assert world.service.cancel(cancelled)["status"] == "cancelled"
            assert exit_code.result() == 0, worker.log
    assert 5 <= (world.service.assert_ended_once(cancelled, "cancelled").num_output_tokens or 0) < 1900
