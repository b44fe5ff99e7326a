"""A client that nobody here wrote: how it is had and run, what it is pointed at, and what it found."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.speed.environments import Environment

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}  # all it needs is here
PATIENCE_SECONDS = 1200.0
LAST_WORDS = 1000  # characters


@dataclass(frozen=True)
class Service:
    """Headrace, as a client needs to know it. `tokenizer` is a directory as transformers reads it."""

    url: str
    key: str
    model: str
    tokenizer: Path


@dataclass(frozen=True)
class Finding:
    """What came out, and what was wrong with it, if anything was."""

    result: str
    problem: str | None = None


class ClientFailed(Exception):
    """The client did not do what it was to do; the message says how it ended, with the end of what it printed."""


@dataclass(frozen=True)
class Client:
    """`ask` runs the installed program against the service, with a directory for what it reads and writes."""

    name: str  # with its version
    workload: str
    program: Environment
    ask: Callable[[Environment, Service, Path], Finding]

    def find(self, service: Service) -> Finding:
        """What it found, or why it found nothing."""
        directory = self.program.directory.with_name(f"{self.program.directory.name}-run")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            return self.ask(self.program, service, directory)
        except ClientFailed as error:
            return Finding("failed", str(error))


def run_program(
    program: Environment, name: str, arguments: Sequence[str | Path], *, directory: Path, **variables: str
) -> None:
    """Run it in a directory, where it also caches; what it prints goes to a log there. Raises ClientFailed."""
    log = directory / "log"
    environment = os.environ | OFFLINE | {"HF_HOME": str(directory / "hf")} | variables
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                [program.directory / "bin" / name, *arguments],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientFailed(f"{name} was not done after {PATIENCE_SECONDS:g} s:\n{_end_of(log)}") from error
    if done.returncode != 0:
        raise ClientFailed(f"{name} ended with {done.returncode}:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:]
