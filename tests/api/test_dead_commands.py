"""`headrace dead` and `headrace replay`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from api.cli import app
from api.client import Headrace
from db.ids import public_id
from db.models import Status
from db.settings import Settings
from tests.api.cli_world import World, run_world
from tests.api.crashing import crash
from tests.api.hand_worker import HandWorker, make_card
from tests.api.lossy_proxy import lossy_proxy
from tests.db.rows import add_job, now


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis, tmp_path: Path) -> Iterator[World]:
    with run_world(settings, engine, redis_client, tmp_path) as world:
        yield world


def dead_job(world: World, *options: str) -> str:
    """A job that three workers died of."""

    def make_worker(**card: Any) -> HandWorker:
        path = world.worker.card.tokenizer_path
        worker = HandWorker(world.worker.engine, world.worker.redis, make_card(path, **card))
        worker.register()
        return worker

    job_id = world.submit(*options)
    crash(make_worker, job_id)
    return job_id


def test_dead_lists_the_reason_and_the_workers_until_the_job_is_replayed(world: World) -> None:
    assert world.run("dead").stdout == "No job is dead.\n"
    job_id = dead_job(world)
    shown = world.run("dead", "--since", "1h").stdout
    assert job_id in shown and "engine@gpu-1 at 0, engine@gpu-2 at 0" in shown and "3 workers were lost" in shown
    assert world.run("dead", "--until", "1h").stdout == "No job is dead.\n"
    (line,) = world.run("dead", "--json").stdout.splitlines()
    assert [crash["attempt"] for crash in json.loads(line)["crashes"]] == [1, 2, 3]
    got = world.run("get", job_id)
    assert "engine@gpu-3" in got.stdout and got.exit_code == 3
    result = world.run("replay", job_id)
    old, new = result.stdout.split()
    assert (old, result.exit_code) == (job_id, 0) and "1 replayed" in result.stderr
    assert f"replay of    {job_id}" in world.run("get", new).stdout
    assert world.run("dead").stdout == "No job is dead.\n"
    assert job_id in world.run("dead", "--replayed").stdout


def test_a_replay_whose_answer_is_lost_makes_one_job(world: World) -> None:
    job_id = world.submit()
    assert world.run("cancel", job_id).exit_code == 0
    with lossy_proxy(world.server.port) as proxy:
        proxy.lose(f"POST /v1/jobs/{job_id}/replay ".encode(), times=1)
        result = world.run("replay", job_id, HEADRACE_URL=proxy.url)
    assert result.exit_code == 0, result.stderr
    replay_id = result.stdout.split()[1]
    with Headrace(f"http://127.0.0.1:{world.server.port}", world.key) as headrace:
        assert [job["id"] for job in headrace.jobs()] == [replay_id, job_id]


def test_replay_all_takes_what_the_options_say(world: World) -> None:
    dead, other = dead_job(world, "--metadata", "night=1"), dead_job(world, "--metadata", "night=2")
    chosen = ("replay", "--all", "-m", "tiny", "--metadata", "night=1", "--since", "1d")
    (outcome,) = [json.loads(line) for line in world.run(*chosen, "--json").stdout.splitlines()]
    assert outcome["job_id"] == dead and outcome["replay_id"] not in (dead, other)
    assert world.run(*chosen).stdout == ""
    assert world.run(*chosen, "--replayed").stdout.split()[0] == dead


def test_replay_all_goes_through_every_page(world: World) -> None:
    with Session(world.worker.engine) as session, session.begin():
        ended = {"status": Status.CANCELLED, "ended_at": now(session), "tenant": "default", "model": "tiny"}
        jobs = [public_id("job_", add_job(session, **ended).id) for _ in range(101)]
    lines = world.run("replay", "--all", "--status", "cancelled").stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(jobs)
    assert len({line.split()[1] for line in lines}) == 101


def test_replay_of_what_cannot_be_replayed_says_so(world: World) -> None:
    job_id = world.submit()
    result = world.run("replay", job_id)
    assert result.exit_code == 1 and "The job is queued; it can be replayed once it has ended." in result.stderr
    assert world.run("replay", "--all", "--since", "yesterday").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "job_1", "--all"],
        ["replay", "job_1", "--model", "m"],
        ["replay", "--all", "--metadata", "night"],
        ["dead", "--since", "999999999d"],
    ],
)
def test_wrong_uses_exit_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2
