"""A batch during which every process is killed, several times: python -m tests.openai.batch_kills --lines 5000

Both stores, the API, the engine worker, the tasks worker and the process that runs batches die at once, and come back.
"""

import argparse
import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import openai
from openai.types import Batch
from sqlalchemy import create_engine, text

from api.up.database import Database
from db.broker import engine_worker_argv, tasks_worker_argv
from db.settings import Settings
from tests.chaos.process import Process, beside_python, signal_tree
from tests.checkpoints import make_checkpoint
from tests.openai.batch_world import jsonl, request
from tests.servers import SURVIVES_KILL, Servers, environment, run_servers

KEY = "hr_key-of-the-kills"
PATIENCE_SECONDS = 120.0  # how long anything may take on a loaded machine
LOOK_SECONDS = 0.1
ENDS = ("completed", "failed", "expired", "cancelled")
SETTINGS: dict[str, Any] = {
    "model_name": "tiny",
    "api_key": KEY,
    "dtype": "float32",
    "num_threads": 1,
    "max_num_seqs": 16,
    "kv_cache_tokens": 8192,
    "lease_seconds": 3.0,
    "renew_seconds": 1.0,
    "sweep_seconds": 1.0,
    "batch_window": 32,
}


@dataclass(frozen=True)
class Report:
    """What became of the batch, and of the lines that were in its output when everything was killed."""

    num_completed_at_kills: list[int]
    num_lost: int  # lines that were in the output file at a kill and are not, or are others, at the end
    batch: Batch
    num_times: Counter[int]  # how often the custom ids are in the output: how many of them so often
    num_jobs: int  # that were made of the lines
    num_wrong: int  # of those, jobs of another length than was asked for
    seconds: float


class Installation:
    """One of each process, on servers that can be killed."""

    def __init__(self, servers: Servers, settings: Settings) -> None:
        self.servers = servers
        self.url = f"http://127.0.0.1:{settings.port}"
        argvs = {
            "api": ["headrace", "api"],
            "engine": engine_worker_argv(settings),
            "tasks": tasks_worker_argv(settings),
            "batches": ["headrace", "batches"],
        }
        env = environment(settings) | {"OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
        self.processes = [
            Process(name, [beside_python(argv[0]), *argv[1:]], env, settings.data_dir / f"{name}.log")
            for name, argv in argvs.items()
        ]

    def start(self) -> None:
        """Start what does not run, and wait until the API answers."""
        for process in self.processes:
            process.start()
        wait_until(self._is_ready, "the API")

    def kill(self) -> None:
        """Everything, at once; the stores come back, with what they had on the disk."""
        for process in self.processes:
            process.signal(signal.SIGKILL)
        for server in (self.servers.postgres, self.servers.valkey):
            assert server.process is not None
            signal_tree(server.process.pid, signal.SIGKILL)
            server.process.wait()
        for process in self.processes:
            process.kill()  # waits
        for server in (self.servers.postgres, self.servers.valkey):
            wait_until(lambda server=server: _has_started(server.start), "a store")

    def close(self) -> None:
        """Kill what runs of ours."""
        for process in self.processes:
            process.kill()

    def _is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=3).is_success
        return False


def run(*, num_lines: int, num_kills: int) -> Report:
    """Run a batch of so many lines, with so many kills evenly spread over it."""
    with _installation() as installation:
        client = openai.OpenAI(base_url=f"{installation.url}/v1", api_key=KEY, max_retries=5)
        lines = [
            request(f"r{i}", prompt=[5 + i % 50, 7, 5 + i % 7], max_tokens=8, ignore_eos=True) for i in range(num_lines)
        ]
        started = monotonic()
        file = client.files.create(file=jsonl(lines), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        seen: dict[str, str] = {}
        at_kills: list[int] = []
        for kill in range(1, num_kills + 1):
            _wait_completed(client, batch.id, num_lines * kill // (num_kills + 1))
            now = client.batches.retrieve(batch.id)
            output = _lines(client, now)
            seen |= output
            at_kills.append(len(output))
            installation.kill()
            installation.start()
        final: Batch = wait_until(
            lambda: _ended(client, batch.id), "the end of the batch", seconds=10 * PATIENCE_SECONDS
        )
        return _report(installation, client, final, seen, at_kills, monotonic() - started)


def _report(
    installation: Installation,
    client: openai.OpenAI,
    batch: Batch,
    seen: dict[str, str],
    at_kills: list[int],
    seconds: float,
) -> Report:
    output = _lines(client, batch)
    text_of_file = client.files.content(batch.output_file_id or "").text
    names = Counter(json.loads(line)["custom_id"] for line in text_of_file.splitlines())
    engine = create_engine(installation.servers.settings.resolved_database_url)
    with engine.connect() as connection:
        num_jobs = connection.execute(text("SELECT count(*) FROM jobs WHERE batch_id IS NOT NULL")).scalar_one()
        wrong = "SELECT count(*) FROM jobs WHERE batch_id IS NOT NULL AND num_output_tokens <> 8"
        num_wrong = connection.execute(text(wrong)).scalar_one()
    engine.dispose()
    num_lost = sum(output.get(name) != line for name, line in seen.items())
    return Report(at_kills, num_lost, batch, Counter(names.values()), num_jobs, num_wrong, seconds)


def _lines(client: openai.OpenAI, batch: Batch) -> dict[str, str]:
    """The lines of the output so far, by their custom ids."""
    if batch.output_file_id is None:
        return {}
    lines = client.files.content(batch.output_file_id).text.splitlines()
    return {json.loads(line)["custom_id"]: line for line in lines}


def _wait_completed(client: openai.OpenAI, batch_id: str, number: int) -> None:
    def is_so() -> bool:
        counts = client.batches.retrieve(batch_id).request_counts
        assert counts is not None and counts.failed == 0, "no line is to fail"
        return counts.completed >= number

    wait_until(is_so, f"{number} lines", seconds=10 * PATIENCE_SECONDS)


def _ended(client: openai.OpenAI, batch_id: str) -> Batch | None:
    batch = client.batches.retrieve(batch_id)
    return batch if batch.status in ENDS else None


@contextmanager
def _installation() -> Iterator[Installation]:
    with run_servers(SURVIVES_KILL) as servers:
        servers.settings.data_dir.mkdir()
        model = make_checkpoint(servers.settings.data_dir / "tiny")
        changes = SETTINGS | {"model": str(model), "port": _free_port()}
        settings = servers.settings.model_copy(update=changes)
        with Database(settings) as database:
            database.prepare()
        installation = Installation(servers, settings)
        try:
            installation.start()
            yield installation
        finally:
            for process in installation.processes:
                _keep_log(process.log_path)
            installation.close()


def _keep_log(path: Path) -> None:
    """On the screen, what went wrong: pytest shows it of a test that failed."""
    for line in path.read_text().splitlines():
        if "Traceback" in line or "Error" in line:
            print(f"{path.name}: {line}")


def _has_started(start: Any) -> bool:
    try:
        start()
    except RuntimeError:  # what is left of a killed PostgreSQL may keep its successor from starting for a moment
        return False
    return True


def wait_until(is_so: Any, what: str, *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Look until `is_so` answers something true, and return it."""
    deadline = monotonic() + seconds
    while not (answer := is_so()):
        assert monotonic() < deadline, f"waited in vain: {what}"
        sleep(LOOK_SECONDS)
    return answer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    report = run(num_lines=arguments.lines, num_kills=arguments.kills)
    print(f"{arguments.lines:,} lines in {report.seconds:.0f} s; kills when {report.num_completed_at_kills} had ended")
    print(f"batch: {report.batch.status}, {report.batch.request_counts}")
    print(f"finished lines lost or changed: {report.num_lost}; times in the output: {dict(report.num_times)}")
    print(f"jobs made: {report.num_jobs:,}, of another length than asked: {report.num_wrong}")


if __name__ == "__main__":
    main()
