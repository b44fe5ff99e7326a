"""The commands, one by one and while things happen to their jobs."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine
from typer.testing import CliRunner

from api.cli import app
from api.commands.render import waiting_line
from db.models import Status
from db.settings import Settings, get_settings
from tests.api.cli_world import World, finish, read_text, run_world

COMMANDS = ("submit", "get", "tail", "cancel", "batch", "dead", "replay", "queues", "status")


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis, tmp_path: Path) -> Iterator[World]:
    with run_world(settings, engine, redis_client, tmp_path) as world:
        yield world


def test_submit_prints_the_id_alone_and_says_the_rest_beside_it(world: World) -> None:
    result = world.run("submit", "Hello")
    assert re.fullmatch(r"job_[0-9a-f]{32}\n", result.stdout)
    assert "next in line" in result.stderr and f"headrace tail {result.stdout.strip()}" in result.stderr


def test_submit_sends_what_its_options_say(world: World) -> None:
    options = ["-n", "8", "--seed", "7", "-t", "low", "--metadata", "a=b=c", "--set", "run_for=60", "--set", "top_k=5"]
    result = world.run("submit", "--json", *options, stdin="from a pipe")
    job = json.loads(result.stdout)
    assert (job["max_tokens"], job["seed"], job["tier"], job["run_for"]) == (8, 7, "low", 60)
    assert job["metadata"] == {"a": "b=c"} and job["model"] == "tiny"


def test_submit_tail_prints_the_text_as_it_is_written(world: World) -> None:
    process = world.start("submit", "Hello", "--tail")
    assert process.stderr is not None
    job_id = process.stderr.readline().strip()
    assert process.stderr.readline().startswith("next in line")
    world.worker.start(job_id)
    for text in (" down", " the\n", "hill"):
        world.worker.say(job_id, text)
        read_text(process.stdout, text)
    world.worker.end(job_id)
    stdout, stderr, code = finish(process)
    assert (stdout, code) == ("\n", 0)
    assert stderr.startswith("succeeded  3 tokens in ")


def test_submit_wait_of_a_failed_job_says_why_and_exits_with_3(world: World) -> None:
    process = world.start("submit", "Hello", "--wait")
    assert process.stderr is not None
    job_id = process.stderr.readline().strip()
    world.worker.start(job_id)
    world.worker.say(job_id, "half a")
    world.worker.end(job_id, Status.FAILED, error_code="bad_logits", error_message="The logits were not numbers.")
    stdout, stderr, code = finish(process)
    assert (stdout, code) == ("half a\n", 3)
    assert "The logits were not numbers. (bad_logits)" in stderr


def test_tail_goes_on_when_the_api_is_restarted_in_between(world: World) -> None:
    job_id = world.submit()
    world.worker.start(job_id)
    process = world.start("tail", job_id)
    world.worker.say(job_id, "one", " two")
    read_text(process.stdout, "one two")
    world.server.stop()
    world.worker.say(job_id, " three")
    world.server.start()
    read_text(process.stdout, " three")
    world.worker.say(job_id, " four")
    world.worker.end(job_id)
    stdout, _, code = finish(process)
    assert (stdout, code) == (" four\n", 0)


def test_tail_of_a_job_that_has_ended_prints_it_from_the_beginning(world: World) -> None:
    job_id = world.submit()
    world.worker.run(job_id, "all", " of it\n")
    result = world.run("tail", job_id)
    assert (result.stdout, result.exit_code) == ("all of it\n", 0)


def test_tail_of_a_job_without_token_events_prints_its_text_at_the_end(world: World) -> None:
    job_id = world.submit("--set", "stream=false")
    world.worker.run(job_id, "quiet", " one")
    assert world.run("tail", job_id).stdout == "quiet one\n"


def test_tail_of_a_job_with_several_outputs_prints_one_after_the_other(world: World) -> None:
    job_id = world.submit("--set", "n=2")
    world.worker.run(job_id, "one", "ein", " mill", "e Mühle")
    assert world.run("tail", job_id).stdout == "one mill\n\n-- output 2 of 2 --\neine Mühle\n"
    assert world.run("get", job_id).stdout.endswith("\none mill\n\n-- output 2 of 2 --\neine Mühle\n")


def test_tail_json_is_one_event_a_line_and_resumes_from_any_of_them(world: World) -> None:
    job_id = world.submit()
    world.worker.run(job_id, "a", "\u2028b")
    events = [json.loads(line) for line in world.run("tail", job_id, "--json").stdout.split("\n")[:-1]]
    assert [event["id"] for event in events] == [0, 1, 2, 3, 4]
    assert [event["event"] for event in events] == ["job.queued", "job.started", *["job.token"] * 2, "job.succeeded"]
    for number in range(5):
        rest = world.run("tail", job_id, "--json", "--after", str(number)).stdout.split("\n")[:-1]
        assert [json.loads(line) for line in rest] == events[number + 1 :]


def test_leaving_a_tail_says_that_the_job_goes_on(world: World) -> None:
    job_id = world.submit()
    world.worker.start(job_id)
    process = world.start("tail", job_id)
    world.worker.say(job_id, "so far")
    read_text(process.stdout, "so far")
    process.send_signal(signal.SIGINT)
    _, stderr, code = finish(process)
    assert code == 130 and f"The job goes on. `headrace tail {job_id}`" in stderr


def test_a_models_text_cannot_steer_the_terminal(world: World) -> None:
    job_id = world.submit()
    world.worker.run(job_id, "\x1b[31mred", "\x07\ttab")
    assert world.run("tail", job_id).stdout == "\x1b[31mred\x07\ttab\n"
    ours, theirs = pty.openpty()
    process = world.start("tail", job_id, stdout=theirs)
    os.close(theirs)
    assert finish(process)[2] == 0
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.replace("\r\n", "\n") == "[31mred\ttab\n"


def test_get_shows_the_place_in_line_and_then_what_came_of_it(world: World) -> None:
    world.submit()
    job_id = world.submit()
    assert "number 2 in line" in world.run("get", job_id).stdout
    world.worker.run(job_id, "the text")
    shown = world.run("get", job_id).stdout
    assert "succeeded" in shown and "in line" not in shown and shown.endswith("\nthe text\n")
    assert json.loads(world.run("get", "--wait", "--json", job_id).stdout)["output"]["text"] == "the text"


def test_a_place_in_line_comes_with_the_interval_of_its_start() -> None:
    times = {"start_at": "2026-01-01T00:01:00Z", "earliest": "2026-01-01T00:00:40Z", "latest": "2026-01-01T00:02:00Z"}
    job = {"status": "queued", "position": 3, "estimate": {"start_in_seconds": 60.0} | times}
    assert waiting_line(job) == "number 3 in line, starts in about 1 min 0 s (40 s to 2 min 0 s)"


def test_cancel_ends_a_job_and_leaves_an_ended_one_as_it_is(world: World) -> None:
    waiting, ended = world.submit(), world.submit()
    world.worker.run(ended, "done")
    result = world.run("cancel", waiting, ended)
    assert result.exit_code == 0
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [["cancelled", waiting], ["succeeded", ended]]
    assert world.run("get", waiting).exit_code == 3


def test_queues_and_status_show_what_waits_and_who_serves(world: World) -> None:
    running = world.submit("-t", "high")
    world.submit("-t", "low")
    world.worker.start(running)
    rows = [line.split() for line in world.run("queues").stdout.splitlines()]
    assert rows[1][:5] == ["tiny", "high", "·", "·", "1"] and rows[3][:5] == ["tiny", "low", "1", "·", "·"]
    status = world.run("status")
    assert status.exit_code == 0
    assert "● ready" in status.stdout and "64 tokens" in status.stdout and "low" in status.stdout
    facts = json.loads(world.run("status", "--json").stdout)
    assert facts["is_ready"] and facts["models"][0]["id"] == "tiny" and len(facts["queues"]) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["get", "job_" + "0" * 32], "No job with id"),
        (["submit", "Hello", "-m", "absent"], "absent"),
        (["submit", "Hello", "--set", "colour=red"], "'colour' is not a known field"),
        (["submit", "Hello", "-n", "1000"], "64"),
    ],
)
def test_a_refusal_is_the_apis_message_and_exit_code_1(world: World, arguments: list[str], says: str) -> None:
    result = world.run(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and says in result.stderr and "\nrequest " in result.stderr
    error = world.run(*arguments, "--json")
    assert says in json.loads(error.stderr)["error"]["message"] and error.stdout == ""


@pytest.mark.parametrize(
    "arguments", [["submit", "Hello", "--metadata", "novalue"], ["tail", "job_1", "--after", "2"], ["get"], ["unknown"]]
)
def test_a_command_used_wrongly_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_a_wrong_key_names_the_places_a_key_comes_from(world: World) -> None:
    result = world.run("queues", HEADRACE_API_KEY="hr_wrong")
    assert result.exit_code == 1 and "Give another key with --key, key= or HEADRACE_API_KEY" in result.stderr


def test_url_and_key_come_from_the_settings_when_nothing_names_them(world: World) -> None:
    variables = {"HEADRACE_PORT": str(world.server.port), "HEADRACE_DATA_DIR": str(world.settings.data_dir)}
    result = world.run("queues", HEADRACE_URL="", HEADRACE_API_KEY="", **variables)
    assert result.exit_code == 0, result.stderr


def test_nothing_listening_is_one_line_and_the_way_out(world: World) -> None:
    world.server.stop()
    result = world.run("queues")
    world.server.start()
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == f"Error: Nothing answers at http://127.0.0.1:{world.server.port}."
    assert "make run" in result.stderr


def test_a_setting_that_is_wrong_is_named() -> None:
    get_settings.cache_clear()
    result = CliRunner().invoke(app, ["queues"], env={"HEADRACE_PORT": "many"})
    assert result.exit_code == 1 and "HEADRACE_PORT: input should be a valid integer" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert f"Example: headrace {command}" in result.stdout and "--json" in result.stdout


def test_help_loads_none_of_the_heavy_libraries() -> None:
    heavy = {"torch", "celery", "sqlalchemy", "fastapi", "httpx", "pydantic", "tokenizers", "transformers"}
    program = "import sys, api.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not heavy & set(loaded.split())


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"headrace {version('headrace')}\n"
