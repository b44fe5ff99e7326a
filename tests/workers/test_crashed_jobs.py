"""Who pays when workers die: the job that kills them, and none of those that were beside it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import jobs, queue, stream, workers
from db.ids import new_id
from db.models import Job
from db.settings import Settings
from tests.servers import Servers
from tests.workers.held_jobs import insert_worker, make_held, row_of
from tests.workers.puller_world import World
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts, wait_until


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis) -> World:
    return World(settings.model_copy(update={"model_name": "m", "max_num_seqs": 4}), engine, redis_client)


def live(world: World, is_deadly: Callable[[UUID], bool]) -> list[UUID]:
    """One worker's life: it takes what it may and either dies of a deadly job, or ends all of it. What it took."""
    restore(world.engine, world.client, "m")
    worker_id = new_id()
    insert_worker(world.engine, worker_id)
    world = World(world.settings, world.engine, world.client, is_registered=True)
    world.lease.worker_id = worker_id
    taken = world.pull_all()
    with Session(world.engine) as session, session.begin():
        if not any(map(is_deadly, taken)):
            jobs.finish(session, [held.ended_as("succeeded") for held in world.delivered])
            return taken
        workers.mark_lost(session, [worker_id])
        standings = stream.standings(world.client, taken)
        lost = jobs.requeue_lost(session, [worker_id], standings)
    queue.push_front(world.client, lost.ready)
    return taken


def restore(engine: Engine, client: redis.Redis, model: str) -> None:
    """As the sweep does for messages that somebody took along."""
    for tier, head in queue.heads(client, model).items():
        with Session(engine) as session:
            queue.push_front(client, jobs.unqueued(session, model, tier, older_than=head, limit=100))


@pytest.mark.parametrize("place", range(4))
def test_a_poisonous_job_dies_alone_wherever_it_stands(world: World, place: int) -> None:
    job_ids = world.submit(4)
    poison = job_ids[place]
    lives = 0
    while any(row.status == "queued" for row in rows_of(world, job_ids)):
        live(world, lambda job_id: job_id == poison)
        lives += 1
        assert lives < 20
    ended = {row.id: (row.status, row.crashes) for row in rows_of(world, job_ids)}
    assert ended[poison] == ("dead", 3)
    assert [ended[each] for each in job_ids if each != poison] == [("succeeded", 1)] * 3


def test_a_job_that_crashed_once_does_not_die_of_poisonous_ones_that_are_new(world: World) -> None:
    [sound], poisonous = world.submit(num_crashes=2), world.submit(6)
    live(world, poisonous.__contains__)
    row = row_of(world.engine, make_held(id=sound))
    assert (row.status, row.crashes) == ("succeeded", 2)
    assert [row.attempt for row in rows_of(world, poisonous)] == [0] * 6


def test_jobs_that_wait_for_a_crashed_one_are_not_charged_for_its_crashes(world: World) -> None:
    job_ids = world.submit(4, num_crashes=1)
    assert live(world, lambda job_id: job_id == job_ids[0]) == job_ids[:1]
    assert [(row.status, row.crashes, row.attempt) for row in rows_of(world, job_ids)] == [
        ("queued", 2, 1),
        *[("queued", 1, 0)] * 3,
    ]


def rows_of(world: World, job_ids: list[UUID]) -> list[Job]:
    with Session(world.engine) as session:
        return [session.get_one(Job, job_id) for job_id in job_ids]


def test_jobs_in_prefill_survive_three_kills_in_a_row(servers: Servers, tmp_path: Path) -> None:
    settings = make_settings(servers, tmp_path / "kills", token_budget=16)
    directory, jobs = tmp_path / "kills", Jobs(settings)
    job_ids: list[UUID] = []
    for kill in range(1, 4):
        with WorkerProcess(settings, directory / f"{kill}.log") as worker:
            if not job_ids:
                jobs.wait_ended(jobs.submit(prompts(1), max_tokens=2))
                job_ids = jobs.submit([[5 + i, *([80, 33, 7] * 333)] for i in range(4)], max_tokens=300)
            if kill == 1:
                wait_until(partial(are_running, jobs, job_ids), "all four to be claimed")
            else:
                wait_for_a_token(jobs, job_ids)
                [fresh] = jobs.submit(prompts(1), max_tokens=2, tier=0)
                jobs.wait_ended([fresh])  # three seats are free for it
            worker.kill()
    assert max(row.crashes for row in jobs.rows(job_ids)) == 1
    with WorkerProcess(settings, directory / "last.log"):
        restore(jobs.engine, jobs.redis, settings.served_name)
        assert [row.status for row in jobs.wait_ended(job_ids)] == ["succeeded"] * 4
    jobs.close()


def are_running(jobs: Jobs, job_ids: list[UUID]) -> bool:
    return all(row.status == "running" for row in jobs.rows(job_ids))


def wait_for_a_token(jobs: Jobs, job_ids: list[UUID]) -> None:
    """Until one of the jobs has delivered more than it has now."""
    before = sum(map(jobs.num_streamed, job_ids))
    wait_until(lambda: sum(map(jobs.num_streamed, job_ids)) > before, "a token")
