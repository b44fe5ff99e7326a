"""`headrace api` as the process it is: what its log has of what its clients were told."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import httpx
from sqlalchemy import Engine, text

from db.settings import Settings
from tests.api.serving import KEY
from tests.servers import environment

BODY = {"model": "tiny", "prompt": "the mill wheel", "max_tokens": 8}


@contextmanager
def api_process(settings: Settings, log: Path) -> Iterator[httpx.Client]:
    """A client of the process, whose log is whole at the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "api.cli", "api"]
    variables = environment(settings.model_copy(update={"port": port})) | {"PYTHONPATH": os.getcwd()}
    with log.open("wb") as stderr, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        process = subprocess.Popen(argv, env=variables, stderr=stderr)
        try:
            wait_until_it_answers(client, process)
            yield client
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_until_it_answers(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """The test's timeout is the limit."""
    while process.poll() is None:
        try:
            client.get("/healthz")
            return
        except httpx.ConnectError:
            sleep(0.05)
    raise AssertionError("it ended by itself")


def test_the_log_tells_of_each_job_and_of_each_failure_by_the_id_in_its_reply(
    settings: Settings, keys, worker, engine: Engine, tmp_path: Path
) -> None:
    with api_process(settings, tmp_path / "api.log") as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        job = client.post("/v1/jobs", json=BODY).json()
        rename(engine, "workers", "workers_away")
        try:
            failed = client.get("/v1/queues")
        finally:
            rename(engine, "workers_away", "workers")
    lines = (tmp_path / "api.log").read_text()
    (submitted,) = (line for line in lines.splitlines() if "job submitted" in line)
    job_id = re.search(r"job_id=(\S+)", submitted)
    assert job_id is not None and job_id[1].replace("-", "") == job["id"].removeprefix("job_")
    assert "model=tiny" in submitted and "tier=normal" in submitted
    request_id = failed.headers["x-request-id"]
    assert failed.status_code == 500 and request_id in failed.json()["error"]["message"]
    (told,) = (line for line in lines.splitlines() if "request failed" in line)
    assert f"request_id={request_id}" in told and "path=/v1/queues" in told
    assert 'relation "workers" does not exist' in lines


def rename(engine: Engine, table: str, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))
