"""What Flower shows of generations is what Postgres says, also after an outage in which it missed their events."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.broker import make_app
from db.models import Job, Status
from db.settings import TIERS, Settings
from tests.servers import Servers
from tests.workers.flower_process import FlowerProcess
from tests.workers.gates import Gate
from tests.workers.worker_process import LONG, NUM_SEATS, Jobs, WorkerProcess, make_settings, prompts, wait_until

NUM_HEARTBEATS = 3  # Celery takes a worker that missed two of them for offline


@pytest.fixture
def worker_settings(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    return make_settings(servers, tmp_path)


@pytest.fixture
def jobs(worker_settings: Settings) -> Iterator[Jobs]:
    jobs = Jobs(worker_settings)
    yield jobs
    jobs.close()


@pytest.fixture
def flower(worker_settings: Settings, tmp_path: Path) -> Iterator[FlowerProcess]:
    with FlowerProcess(worker_settings, tmp_path / "flower.log") as flower:
        yield flower


def test_broker_page_equals_postgres_queued_counts_per_tier(
    worker_settings: Settings, jobs: Jobs, flower: FlowerProcess, tmp_path: Path
) -> None:
    with WorkerProcess(worker_settings, tmp_path / "worker.log") as worker:
        running = jobs.submit(prompts(NUM_SEATS), max_tokens=LONG)
        jobs.wait_streamed(running, 1)
        for tier, num_jobs in enumerate((3, 5, 2)):
            jobs.submit(prompts(num_jobs), tier=tier)
        counted = wait_until(lambda: counted_at_rest(worker, jobs, flower), "both to count the same")
        assert sum(counted.values()) > 0 and counted["low"] == 2
        wait_until(lambda: sum(queued(jobs).values()) == 0, "the jobs to start")
        assert flower.lengths() == dict.fromkeys(TIERS, 0)


def counted_at_rest(worker: WorkerProcess, jobs: Jobs, flower: FlowerProcess) -> dict[str, int] | None:
    """What both count of one moment; None when they differ, as they do between a pop and its claim."""
    worker.freeze()
    counted = queued(jobs)
    is_equal = flower.lengths() == counted
    worker.thaw()
    return counted if is_equal else None


def test_worker_stays_online_through_a_step_of_three_heartbeats(
    worker_settings: Settings, jobs: Jobs, flower: FlowerProcess, tmp_path: Path
) -> None:
    step = Gate(jobs.redis, "step", worker_settings.served_name)
    patient = worker_settings.model_copy(update={"lease_seconds": 60.0})  # a step of two leases is a hung engine
    with WorkerProcess(patient, tmp_path / "worker.log", app="tests.workers.gated_app"):
        [name] = wait_until(flower.worker_states, "the worker to be online")
        step.close()
        [job_id] = jobs.submit(prompts(1))
        num_stops = step.wait()
        for _ in heartbeats(worker_settings, NUM_HEARTBEATS):
            assert flower.worker_states() == {name: True}
        assert step.num_stops() == num_stops, "a second step"
        step.open()
        [row] = jobs.wait_ended([job_id])
        assert row.status == "succeeded"


def test_job_id_is_the_only_task_argument_and_no_text_is_shown(
    worker_settings: Settings, jobs: Jobs, flower: FlowerProcess, tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": "a secret"}]
    with WorkerProcess(worker_settings, tmp_path / "worker.log"):
        [job_id] = jobs.submit(prompts(1), messages=messages)
        jobs.wait_ended([job_id])
        wait_until(lambda: flower.state(job_id) == "SUCCESS", "its end in Flower")
    task = flower.tasks()[job_id]
    assert (task["args"], task["kwargs"]) == (f"('{job_id}',)", "{}")
    assert "secret" not in str(task)
    assert jobs.output(job_id).text.strip() not in str(task)


def test_jobs_that_ended_in_an_outage_of_the_broker_are_shown_as_ended(
    worker_settings: Settings, servers: Servers, jobs: Jobs, flower: FlowerProcess, tmp_path: Path
) -> None:
    with WorkerProcess(worker_settings, tmp_path / "worker.log"):
        succeeding = jobs.submit(prompts(2), max_tokens=LONG)
        failing = jobs.submit(prompts(1), max_tokens=LONG + 500, run_for=4.0)
        all_jobs = [*succeeding, *failing]
        wait_until(lambda: all(flower.state(job_id) == "STARTED" for job_id in all_jobs), "the jobs in Flower")
        servers.valkey.kill()
        flower.process.send_signal(signal.SIGSTOP)  # it comes back later than the worker, as by bad luck
        try:
            jobs.wait_ended(all_jobs)
        finally:
            servers.valkey.start()
        [unseen] = jobs.submit(prompts(1))  # its end says that the worker is connected, and has told all it knows
        jobs.wait_ended([unseen])
        flower.process.send_signal(signal.SIGCONT)
        wait_until(lambda: all(flower.state(job_id) == "SUCCESS" for job_id in succeeding), "their ends in Flower")
        wait_until(lambda: flower.state(failing[0]) == "FAILURE", "the failure in Flower")
        wait_until(lambda: flower.state(unseen) == "SUCCESS", "the end that it did not hear")
        assert flower.tasks()[unseen]["name"] == "generate"


def queued(jobs: Jobs) -> dict[str, int]:
    """How many jobs of each tier wait in Postgres."""
    statement = select(Job.tier, func.count()).where(Job.status == Status.QUEUED).group_by(Job.tier)
    with Session(jobs.engine) as session:
        counted = dict(session.execute(statement).tuples().all())
    return {name: counted.get(tier, 0) for tier, name in enumerate(TIERS)}


def heartbeats(settings: Settings, number: int) -> Iterator[None]:
    """Once for each heartbeat of a worker that is published from now on."""
    app = make_app(settings)
    seen: list[object] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"worker-heartbeat": seen.append})
        capture = receiver.itercapture(limit=None, timeout=60, wakeup=False)
        for num_before in range(number):
            while len(seen) <= num_before:
                next(capture)
            yield
