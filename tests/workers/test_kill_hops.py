"""A worker killed, or told to stop, at each hop of a job's way through it: the job ends once, and its text is whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import pytest

from tests.servers import Servers
from tests.workers.gates import Gate
from tests.workers.service import WEBHOOK, Service, running_service, sweeping
from tests.workers.succession import Succession
from tests.workers.worker_process import make_settings, prompts, wait_until

GATED_APP = "tests.workers.gated_app"
NUM_TOKENS = 5
HOPS = {"popped": 1, "claimed": 2, "computed": 2, "committed": 1}  # and the attempt that ends the job


@dataclass
class World:
    """A model of its own, with a sweep. A test is left a worker by the test before, and leaves one."""

    service: Service
    workers: Succession

    def gate(self, hop: str) -> Gate:
        return Gate(self.service.jobs.redis, hop, self.service.settings.served_name)

    def submit(self) -> UUID:
        [job_id] = self.service.jobs.submit(prompts(1), max_tokens=NUM_TOKENS, webhook_url=WEBHOOK)
        return job_id

    def assert_whole(self, job_id: UUID) -> None:
        """It succeeded, once and uncharged, and a job to which nothing happened has the same text."""
        row = self.service.assert_ended_once(job_id, "succeeded")
        assert (row.crashes, row.num_output_tokens) == (0, NUM_TOKENS)
        undisturbed = self.submit()
        self.service.assert_ended_once(undisturbed, "succeeded")
        assert self.service.jobs.output(job_id).token_ids == self.service.jobs.output(undisturbed).token_ids


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("hops")
    settings = make_settings(servers, directory, sweep_seconds=0.5, drain_seconds=0.0)
    with running_service(settings) as service, sweeping(service.jobs):
        workers = Succession(settings, directory, app=GATED_APP)
        yield World(service, workers)
        workers.end()


@pytest.mark.parametrize(("hop", "attempt"), HOPS.items())
def test_a_job_survives_the_kill_of_its_worker_at_every_hop(world: World, hop: str, attempt: int) -> None:
    gate = world.gate(hop)
    gate.close()
    with world.workers.worker() as killed:
        job_id = world.submit()
        gate.wait()
        killed.kill()
    gate.open()
    with world.workers.worker():
        world.assert_whole(job_id)
    assert world.service.jobs.row(job_id).attempt == attempt


@pytest.mark.parametrize("hop", ["claimed", "computed"])
def test_a_job_survives_a_stop_of_its_worker_at_every_hop(world: World, hop: str) -> None:
    gate = world.gate(hop)
    gate.close()
    with world.workers.worker() as stopped, ThreadPoolExecutor(1) as pool:
        job_id = world.submit()
        gate.wait()
        exit_code = pool.submit(stopped.terminate)
        wait_until(lambda: "warm shutdown" in stopped.log.lower(), "the stop to begin")
        gate.open()
        assert exit_code.result() == 0, stopped.log
    is_computed = hop in ("computed", "committed")
    assert world.service.jobs.row(job_id).status in (("succeeded",) if is_computed else ("succeeded", "queued"))
    with world.workers.worker():
        world.assert_whole(job_id)
