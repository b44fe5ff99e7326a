"""A step that hangs in a kernel: its worker leaves, and its jobs go on elsewhere where they were."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from db.models import Worker
from tests.servers import Servers
from tests.workers.hangs import Hang, hang
from tests.workers.recovery_world import World, recovering
from tests.workers.worker_process import NUM_SEATS, PATIENCE_SECONDS, WorkerProcess

NUM_TOKENS = 1000


@pytest.fixture
def world(servers: Servers, tmp_path: Path) -> Iterator[World]:
    with recovering(servers, tmp_path) as world:
        yield world


def start_and_hang(world: World, how: Hang) -> tuple[WorkerProcess, list[UUID]]:
    """A worker whose step hangs in the middle of these jobs."""
    settings = world.jobs.settings
    worker = WorkerProcess(settings, world.directory / "hung.log", app="tests.workers.hung_app")
    world.started.append(worker)
    job_ids = world.submit(NUM_SEATS, NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 5)
    hang(world.jobs.redis, settings.served_name, how)
    return worker, job_ids


def test_a_worker_whose_step_hangs_in_a_kernel_ends_itself_and_its_jobs_go_on_elsewhere(world: World) -> None:
    worker, job_ids = start_and_hang(world, Hang.BESIDE_PYTHON)
    assert worker.process.wait(PATIENCE_SECONDS) == 1
    assert "EngineHung: a step has taken" in worker.log
    world.start("other")
    world.assert_ended_once(job_ids, attempt=2)
    world.assert_undisturbed(job_ids)


def test_jobs_of_a_worker_whose_step_hangs_with_all_of_python_go_on_elsewhere(world: World) -> None:
    worker, job_ids = start_and_hang(world, Hang.WITH_PYTHON)
    [first_id] = {row.worker_id for row in world.jobs.rows(job_ids)}
    assert worker.process.wait(PATIENCE_SECONDS) == 1
    assert "Timeout" in worker.log and "hung_app.py" in worker.log, "it says where every thread stands"
    other = world.start("other")
    world.assert_ended_once(job_ids, attempt=2)
    assert {row.worker_id for row in world.jobs.rows(job_ids)} == {world.wait_ready(other)}
    with Session(world.jobs.engine) as session:
        assert session.get_one(Worker, first_id).status == "lost"
    world.assert_undisturbed(job_ids)
