"""The engine worker as a process: what it promises when jobs, stores, signals and kills come at it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from db import jobs as db_jobs
from db import stream, workers
from db.broker import make_app
from db.models import Job
from db.queue import push_front, queue_name
from tests.servers import Servers
from tests.workers.worker_process import (
    GREEDY,
    LONG,
    MIDDLING,
    NUM_SEATS,
    PATIENCE_SECONDS,
    Jobs,
    WorkerProcess,
    make_settings,
    prompts,
    wait_until,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def worker(servers: Servers, directory: Path) -> Iterator[WorkerProcess]:
    """One worker for the tests that leave it as they found it."""
    with WorkerProcess(make_settings(servers, directory), directory / "worker.log") as worker:
        yield worker
        assert worker.terminate() == 0, worker.log


@pytest.fixture
def jobs(worker: WorkerProcess) -> Iterator[Jobs]:
    jobs = Jobs(worker.settings)
    yield jobs
    jobs.close()


def test_sixty_jobs_succeed_and_never_hold_more_than_the_seats(jobs: Jobs) -> None:
    rows = jobs.wait_ended(jobs.submit(prompts(60), max_tokens=12))
    assert [row.status for row in rows] == ["succeeded"] * 60
    assert {row.attempt for row in rows} == {1}
    starts = [(row.started_at, 1) for row in rows]
    ends = [(row.ended_at, -1) for row in rows]
    num_running = most_running = 0
    for _, change in sorted(starts + ends, key=lambda event: event[0]):
        num_running += change
        most_running = max(most_running, num_running)
    assert most_running <= NUM_SEATS


def test_the_stream_and_the_row_say_the_same(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=30)
    jobs.wait_ended([job_id])
    output, delivered = jobs.output(job_id), jobs.delivered(job_id)
    assert [token.token_id for token in delivered] == output.token_ids
    assert "".join(token.text for token in delivered) == output.text
    assert output.text_offsets[-1] == len(output.text)


def test_a_stop_string_ends_the_job_and_does_not_show(jobs: Jobs) -> None:
    [whole] = jobs.submit(prompts(1), max_tokens=30)
    jobs.wait_ended([whole])
    text = jobs.output(whole).text
    stop = text[10:13]
    [job_id] = jobs.submit(prompts(1), max_tokens=30, sampling=GREEDY.model_copy(update={"stop": (stop,)}))
    [row] = jobs.wait_ended([job_id])
    assert (row.status, row.finish_reason) == ("succeeded", "stop")
    assert jobs.output(job_id).text == text[: text.index(stop)]


def test_a_published_cancel_ends_the_job_with_what_it_has_delivered(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 5)
    jobs.redis.publish(f"cancel.{jobs.row(job_id).worker_id}", str(job_id))
    [row] = jobs.wait_ended([job_id])
    assert row.status == "cancelled"
    assert 5 <= (row.num_output_tokens or 0) < LONG
    assert len(jobs.output(job_id).token_ids) == row.num_output_tokens


def test_what_is_no_text_on_the_cancel_channel_harms_nobody(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 1)
    channel = f"cancel.{jobs.row(job_id).worker_id}"
    jobs.redis.publish(channel, b"\xff\xfe")
    jobs.redis.publish(channel, str(job_id))
    assert [row.status for row in jobs.wait_ended([job_id])] == ["cancelled"]


def test_a_cancel_that_is_only_in_the_row_is_found(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 1)
    with Session(jobs.engine) as session:
        session.execute(update(Job).where(Job.id == job_id).values(cancel_requested_at=Job.created_at))
        session.commit()
    [row] = jobs.wait_ended([job_id])
    assert row.status == "cancelled"


def test_a_job_that_runs_too_long_expires_with_what_it_has(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG, run_for=0.3)
    [row] = jobs.wait_ended([job_id])
    assert row.status == "expired"
    assert row.error_code == "run_for_passed"
    assert 0 < (row.num_output_tokens or 0) < LONG


def test_celerys_revoke_with_terminate_cancels_a_running_job(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 1)
    make_app(jobs.settings).control.revoke(str(job_id), terminate=True)
    [row] = jobs.wait_ended([job_id])
    assert row.status == "cancelled"


def test_a_job_revoked_before_it_was_pulled_is_cancelled_in_its_row(jobs: Jobs) -> None:
    running = jobs.submit(prompts(NUM_SEATS), max_tokens=LONG)
    jobs.wait_streamed(running, 1)
    [job_id] = jobs.submit(prompts(1))
    app = make_app(jobs.settings)
    app.control.revoke([str(job_id)])
    wait_until(lambda: str(job_id) in str(app.control.inspect(timeout=0.3).revoked()), "the revoke to arrive")
    app.control.revoke([str(running_id) for running_id in running], terminate=True)
    rows = jobs.wait_ended([*running, job_id])
    assert {row.status for row in rows} == {"cancelled"}
    assert jobs.row(job_id).attempt == 1


def test_a_job_that_celery_could_not_take_is_run_all_the_same(jobs: Jobs) -> None:
    held_up = jobs.submit(prompts(NUM_SEATS), max_tokens=LONG)
    jobs.wait_streamed(held_up, 1)
    [job_id] = jobs.submit(prompts(1))
    name = queue_name(jobs.settings.served_name, 1)
    [message] = jobs.redis.lrange(name, 0, -1)
    jobs.redis.lset(name, 0, message.replace(b'"task": "generate"', b'"task": "nonsense"'))
    jobs.redis.publish(f"cancel.{jobs.row(held_up[0]).worker_id}", str(held_up[0]))
    [row] = jobs.wait_ended([job_id])
    assert (row.status, row.attempt, row.crashes) == ("succeeded", 2, 0)
    for each in held_up[1:]:
        jobs.redis.publish(f"cancel.{jobs.row(each).worker_id}", str(each))
    jobs.wait_ended(held_up)


def test_celerys_cancel_consumer_and_add_consumer_turn_a_tier_off_and_on(jobs: Jobs) -> None:
    control, low_queue = make_app(jobs.settings).control, queue_name(jobs.settings.served_name, 2)
    inspect = control.inspect(timeout=PATIENCE_SECONDS, limit=1)

    def is_read() -> bool:
        [queues] = inspect.active_queues().values()
        return low_queue in {queue["name"] for queue in queues}

    control.cancel_consumer(low_queue)
    wait_until(lambda: not is_read(), "the tier to be off")
    [low] = jobs.submit(prompts(1), tier=2)
    [high] = jobs.submit(prompts(1), tier=0)
    jobs.wait_ended([high])
    assert (jobs.row(low).status, jobs.row(low).attempt) == ("queued", 0)
    control.add_consumer(low_queue)
    assert [row.status for row in jobs.wait_ended([low])] == ["succeeded"]
    assert is_read()


def test_celery_shows_the_running_job_by_its_id_alone_and_the_tier_queues(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 1)
    inspect = make_app(jobs.settings).control.inspect(timeout=PATIENCE_SECONDS, limit=1)
    [active] = inspect.active().values()
    assert [(task["id"], task["name"], task["args"], task["kwargs"]) for task in active] == [
        (str(job_id), "generate", [str(job_id)], {})
    ]
    [queues] = inspect.active_queues().values()
    names = {queue["name"] for queue in queues}
    assert names >= {queue_name(jobs.settings.served_name, tier) for tier in range(3)}
    [stats] = inspect.stats().values()
    assert stats["pool"]["implementation"] == "workers.pool:EnginePool"
    assert (stats["pool"]["status"], stats["pool"]["held"], stats["pool"]["running"]) == ("ready", 1, 1)
    jobs.redis.publish(f"cancel.{jobs.row(job_id).worker_id}", str(job_id))
    jobs.wait_ended([job_id])


def test_a_generation_is_told_as_celery_events(jobs: Jobs) -> None:
    events: list[dict[str, Any]] = []

    def take(event: dict[str, Any]) -> None:
        if event["type"].startswith("task-"):
            events.append(event)

    app = make_app(jobs.settings)
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": take})
        with receiver.consumer_context(wakeup=False) as (reading, _, _):
            with suppress(TimeoutError):
                reading.drain_events(timeout=0.1)  # kombu subscribes when it first looks
            jobs.submit(prompts(1), max_tokens=5)
            while not events or events[-1]["type"] in ("task-sent", "task-received", "task-started"):
                reading.drain_events(timeout=PATIENCE_SECONDS)
    assert [event["type"] for event in events] == ["task-sent", "task-received", "task-started", "task-succeeded"]
    assert len({event["uuid"] for event in events}) == 1
    assert "num_output_tokens" in events[-1]["result"]


def test_a_worker_that_was_declared_lost_comes_back_under_another_id(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=LONG)
    jobs.wait_streamed([job_id], 1)
    lost_id = jobs.row(job_id).worker_id
    assert lost_id is not None
    with Session(jobs.engine) as session:  # what the sweep does
        workers.mark_lost(session, [lost_id])
        lost = db_jobs.requeue_lost(session, [lost_id], stream.standings(jobs.redis, [job_id]))
        session.commit()
    push_front(jobs.redis, lost.ready)
    [row] = jobs.wait_ended([job_id])
    assert (row.status, row.attempt) == ("succeeded", 2)
    assert row.worker_id != lost_id
    assert [token.token_id for token in jobs.delivered(job_id)] == jobs.output(job_id).token_ids


def test_a_lost_redis_is_written_again_from_memory(jobs: Jobs) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=MIDDLING)
    jobs.wait_streamed([job_id], 5)
    jobs.redis.flushall()
    [row] = jobs.wait_ended([job_id])
    assert row.status == "succeeded"
    wait_until(lambda: jobs.num_streamed(job_id) == MIDDLING, "the stream to be whole")
    assert [token.token_id for token in jobs.delivered(job_id)] == jobs.output(job_id).token_ids


def test_jobs_run_on_while_postgres_is_away_and_end_when_it_is_back(jobs: Jobs, servers: Servers) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=MIDDLING)
    jobs.wait_streamed([job_id], 5)
    with jobs.engine.begin() as connection:  # the tests' server commits without waiting for the disk
        connection.execute(text("CHECKPOINT"))
    servers.postgres.kill()
    jobs.wait_streamed([job_id], MIDDLING)
    servers.postgres.start()
    [row] = jobs.wait_ended([job_id])
    assert (row.status, row.attempt) == ("succeeded", 1)


def test_a_killed_valkey_does_not_hold_up_a_running_job(jobs: Jobs, servers: Servers) -> None:
    [job_id] = jobs.submit(prompts(1), max_tokens=MIDDLING)
    jobs.wait_streamed([job_id], 5)
    servers.valkey.kill()
    [row] = jobs.wait_ended([job_id])
    servers.valkey.start()
    assert row.status == "succeeded"
    [later] = jobs.submit(prompts(1))
    assert jobs.wait_ended([later])[0].status == "succeeded"
