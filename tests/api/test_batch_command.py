"""`headrace batch`, beside the process that runs batches."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
import redis
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from db.ids import public_id
from db.models import Job, Status
from db.settings import Settings
from tests.api.cli_world import World, finish, run_world


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis, tmp_path: Path) -> Iterator[World]:
    with run_world(settings, engine, redis_client, tmp_path) as world:
        yield world


def write_requests(path: Path, *max_tokens: int) -> str:
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": [5, 6]}}
        for i in range(len(max_tokens))
    ]
    for line, most in zip(lines, max_tokens, strict=True):
        line["body"]["max_tokens"] = most
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def work_until_it_ends(world: World, command: Popen[str]) -> None:
    """Run what is queued; the test's timeout is the limit."""
    while command.poll() is None:
        with Session(world.worker.engine) as session:
            queued = session.scalars(select(Job.id).where(Job.status == Status.QUEUED)).all()
        for job_id in queued:
            world.worker.run(public_id("job_", job_id), " turns")


def test_batch_prints_each_result_as_a_line_and_says_how_it_went(world: World, tmp_path: Path) -> None:
    world.start("batches")
    command = world.start("batch", write_requests(tmp_path / "requests.jsonl", 4, 9999, 4))
    work_until_it_ends(world, command)
    stdout, stderr, code = finish(command)
    results = {line["custom_id"]: line["response"] for line in map(json.loads, stdout.splitlines())}
    assert {name: response["status_code"] for name, response in results.items()} == {"r0": 200, "r1": 400, "r2": 200}
    assert results["r0"]["body"]["choices"][0]["text"] == " turns"
    batch_id, *_, last = stderr.splitlines()
    assert (last, code) == ("completed  3 of 3 have ended, 1 without success", 3)
    again = world.run("batch", batch_id)
    assert sorted(again.stdout.splitlines()) == sorted(stdout.splitlines()) and again.exit_code == 3


def test_leaving_a_batch_says_that_it_goes_on_and_cancel_ends_it(world: World, tmp_path: Path) -> None:
    command = world.start("batch", write_requests(tmp_path / "requests.jsonl", 4))
    assert command.stderr is not None
    batch_id = command.stderr.readline().strip()
    command.send_signal(signal.SIGINT)
    _, stderr, code = finish(command)
    assert code == 130 and f"The batch goes on. `headrace batch {batch_id}`" in stderr
    assert world.run("cancel", batch_id).stdout == f"cancelling  {batch_id}\n"


@pytest.mark.parametrize("text", ["", "no JSON\n", '{"custom_id": "a"}\n', None])
def test_a_file_that_holds_no_requests_is_used_wrongly(world: World, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "requests.jsonl"
    if text is not None:
        path.write_text(text)
    result = world.run("batch", str(path), COLUMNS="500")
    assert result.exit_code == 2 and f"'{path}'" in result.stderr
