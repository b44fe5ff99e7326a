"""What a client that goes wrong is: a finding that says so, and not the end of the run."""

from pathlib import Path

import pytest

from tests.bench.speed.environments import Environment
from tests.clients import client, evaluation, load
from tests.clients.client import Client, Finding, Service, run_program

SERVICE = Service("http://127.0.0.1:1", "key", "tiny", Path("tokenizer"))


def install(directory: Path, name: str, script: str) -> Environment:
    """A program of that name, which does what the script says."""
    program = directory / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return Environment(directory, lambda _: None)


def find(program: Environment, name: str) -> Finding:
    """What a client finds that runs the program and reads nothing."""

    def ask(program: Environment, _: Service, directory: Path) -> Finding:
        run_program(program, name, (), directory=directory)
        return Finding("done")

    return Client(name, "nothing", program, ask).find(SERVICE)


def test_a_client_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.1)
    found = find(install(tmp_path / "hung", "hung", "exec sleep 600"), "hung")
    assert found.result == "failed" and "hung was not done after 0.1 s" in str(found.problem)


def test_a_client_that_fails_is_a_finding_with_its_last_words(tmp_path: Path) -> None:
    found = find(install(tmp_path / "failing", "failing", "echo it broke; exit 3"), "failing")
    assert found == Finding("failed", "failing ended with 3:\nit broke\n")


@pytest.mark.parametrize(
    ("make_client", "directory", "name", "problem"),
    [
        (evaluation.make_client, "lm-eval", "lm_eval", "lm_eval ended well, and left 0 files of results"),
        (load.make_client, "guidellm", "guidellm", "guidellm ended well, and left no report"),
    ],
)
def test_a_client_that_leaves_no_results_is_a_finding(tmp_path: Path, make_client, directory, name, problem) -> None:
    install(tmp_path / directory, name, "exit 0")
    assert make_client(tmp_path).find(SERVICE) == Finding("failed", problem)
