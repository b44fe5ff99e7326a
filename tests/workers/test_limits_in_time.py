"""start_by, run_for and finish_by end jobs as expired, with what was produced, wherever the job is when they pass."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from tests.servers import Servers
from tests.workers.gates import Gate
from tests.workers.service import WEBHOOK, Service, running_service
from tests.workers.succession import Succession
from tests.workers.worker_process import LONG, make_settings, wait_until
from workers.sweep import Sweep
from workers.sweeper import Sweeper

GATED_APP = "tests.workers.gated_app"
LEASE_SECONDS, SWEEP_SECONDS = 5.0, 0.5
SHORT, LONG_PROMPT = [5, 80, 33, 7], [9, 80, 33, 7] * 25  # one chunk of a step; seven
CHUNK = 16
MOMENT = 2.5  # seconds: a limit that is still to come when the job starts


@dataclass
class World:
    """A model of its own, and a sweep. Its worker goes from test to test."""

    service: Service
    workers: Succession

    def __post_init__(self) -> None:
        self.jobs = self.service.jobs
        self.step = Gate(self.jobs.redis, "step", self.service.settings.served_name)

    def submit(self, prompt: list[int] = SHORT, **options: Any) -> UUID:
        [job_id] = self.jobs.submit([prompt], webhook_url=WEBHOOK, **({"max_tokens": LONG} | options))
        return job_id

    def assert_expired(self, job_id: UUID, limit: str, *, attempt: int) -> int:
        """The job has expired by this limit, once and for every reader; how many tokens it has produced."""
        row = self.service.assert_ended_once(job_id, "expired")
        assert (row.error_code, row.attempt) == (f"{limit}_passed", attempt)
        return row.num_output_tokens or 0


def soon(limit: str) -> dict[str, Any]:
    """The field of a limit that will pass in a moment, of a job that starts now."""
    return {limit: MOMENT if limit == "run_for" else datetime.now(UTC) + timedelta(seconds=MOMENT)}


def wait_for(limit: dict[str, Any]) -> None:
    """Until the limit has passed, of a job that has started."""
    end = monotonic() + MOMENT
    wait_until(lambda: monotonic() > end, f"{limit} to pass")


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("limits")
    times = {"lease_seconds": LEASE_SECONDS, "sweep_seconds": SWEEP_SECONDS}
    sizes = {"max_num_seqs": 1, "token_budget": CHUNK, "prefix_cache": False}  # every prompt is computed, all of it
    settings = make_settings(servers, directory, **sizes, **times)
    with running_service(settings) as service:
        engine, redis = service.jobs.engine, service.jobs.redis
        workers = Succession(settings, directory, app=GATED_APP)
        sweeper = Sweeper(engine, Sweep(engine, redis, settings), sweep_seconds=SWEEP_SECONDS)
        sweeper.start()
        yield World(service, workers)
        workers.end()
        sweeper.stop()


def test_a_job_whose_limit_passes_while_no_worker_is_up_expires_and_is_not_run_later(world: World) -> None:
    world.workers.end()
    late = {limit: world.submit(**soon(limit)) for limit in ("start_by", "finish_by")}
    other = world.submit(max_tokens=3)
    for limit, job_id in late.items():
        assert world.assert_expired(job_id, limit, attempt=0) == 0
    with world.workers.worker():
        world.service.assert_ended_once(other, "succeeded")
    for limit, job_id in late.items():
        assert world.assert_expired(job_id, limit, attempt=0) == 0


@pytest.mark.parametrize("limit", ["start_by", "finish_by"])
def test_a_job_whose_limit_passes_behind_another_expires_without_running(world: World, limit: str) -> None:
    with world.workers.worker():
        world.step.close()
        running = world.submit(max_tokens=4)
        world.step.wait()
        waiting = world.submit(**soon(limit))
        assert world.assert_expired(waiting, limit, attempt=0) == 0
        world.step.open()
        world.service.assert_ended_once(running, "succeeded")


@pytest.mark.parametrize("limit", ["finish_by", "run_for"])
@pytest.mark.parametrize(
    ("prompt", "num_steps", "num_tokens"), [(LONG_PROMPT, 3, 0), (SHORT, 3, 4)], ids=["prefilling", "decoding"]
)
def test_a_job_whose_limit_passes_while_it_is_computed_ends_with_its_tokens_after_the_step(
    world: World, limit: str, prompt: list[int], num_steps: int, num_tokens: int
) -> None:
    with world.workers.worker() as worker:
        world.step.close()
        wait_until(lambda: "the model is ready" in worker.log, "the worker")
        passing = soon(limit)
        late = world.submit(prompt, **passing)
        world.step.wait()
        for _ in range(num_steps):
            world.step.let()
        wait_for(passing)
        world.step.open()
        assert world.assert_expired(late, limit, attempt=1) == num_tokens
        world.service.assert_ended_once(world.submit(max_tokens=3), "succeeded")


def test_what_a_worker_that_was_frozen_beyond_its_lease_and_the_limit_makes_later_is_never_seen(world: World) -> None:
    with world.workers.worker() as worker:
        world.step.close()
        wait_until(lambda: "the model is ready" in worker.log, "the worker")
        late = world.submit(max_tokens=4, **soon("finish_by"))
        world.step.wait()
        for _ in range(3):
            world.step.let()  # the last token stands in flight
        world.jobs.wait_streamed([late], 3)
        worker.freeze()
        assert world.assert_expired(late, "finish_by", attempt=1) == 3
        expired = world.service.get(late)
        worker.thaw()
        world.step.open()
        world.service.assert_ended_once(world.submit(max_tokens=3), "succeeded")
    assert world.service.get(late) == expired
    assert world.assert_expired(late, "finish_by", attempt=1) == 3


@pytest.mark.parametrize("limit", ["finish_by", "run_for"])
def test_a_job_whose_limit_passes_after_its_worker_died_keeps_what_it_delivered(world: World, limit: str) -> None:
    with world.workers.worker() as worker:
        wait_until(lambda: "the model is ready" in worker.log, "the worker")
        late = world.submit(**soon(limit))
        world.jobs.wait_streamed([late], 5)
        worker.kill()
    num_delivered = world.jobs.num_streamed(late)
    kept = world.assert_expired(late, limit, attempt=1)
    assert kept >= num_delivered, "the journal may know of more than the stream"
