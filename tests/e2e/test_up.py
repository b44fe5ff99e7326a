"""`headrace up` as a supervisor: what dies comes back, and when it goes, nothing stays."""

import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from db.settings import Settings
from tests.e2e.instance import HEADRACE, Instance, is_running, running, served_model, wait_until

PROCESSES = ("postgres", "valkey", "api", "tasks", "batches", "worker", "beat", "flower")


def test_each_process_has_a_pid_file_and_a_log(instance: Instance) -> None:
    for name in PROCESSES:
        assert is_running(instance.pid(name))
        assert (instance.run_dir / f"{name}.log").exists()


def test_the_key_is_kept_for_its_owner_alone(instance: Instance) -> None:
    for name in ("api-key", "webhook-secret"):
        path = instance.run_dir.parent / name
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text().strip() in instance.screen


def test_a_second_one_says_that_it_runs_already(instance: Instance) -> None:
    second = [HEADRACE, "up"]
    done = subprocess.run(
        second, env=instance.environment, cwd=instance.run_dir.parent, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"already running at {instance.url}\n"
    assert done.returncode == 0


@pytest.mark.parametrize("name", PROCESSES)
def test_a_killed_process_is_started_again(instance: Instance, name: str) -> None:
    pid = instance.pid(name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: instance.pid(name) not in (0, pid) and is_running(instance.pid(name)))
    wait_until(lambda: f"{name} died and was started again" in instance.screen)


def test_after_all_were_killed_a_job_succeeds(instance: Instance) -> None:
    with instance.client() as client:
        wait_until(lambda: is_ready(client))
        model = client.get("/v1/models").json()["data"][0]["id"]
        job = client.post("/v1/jobs", json={"model": model, "prompt": "Water", "max_tokens": 4}).json()
        assert client.get(job["links"]["self"], headers={"Prefer": "wait=60"}).json()["status"] == "succeeded"


@pytest.mark.parametrize("victim", ["up", "supervisord"])
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, tiny_model: Path, victim: str) -> None:
    with running(tmp_path, HEADRACE_MODEL=str(tiny_model)) as instance:
        instance.wait_until_ready()
        pids = instance.pids()
        os.kill(instance.process.pid if victim == "up" else pids["supervisord"], signal.SIGKILL)
        wait_until(lambda: not any(is_running(pid) for pid in pids.values()), seconds=10)
        assert instance.process.wait(20) == (-signal.SIGKILL if victim == "up" else 1)


def test_servers_that_exist_are_used_and_none_is_embedded(tmp_path: Path, tiny_model: Path, settings: Settings) -> None:
    stores = {
        "HEADRACE_DATABASE_URL": settings.resolved_database_url,
        "HEADRACE_REDIS_URL": settings.resolved_redis_url,
    }
    with running(tmp_path / "its own", HEADRACE_MODEL=str(tiny_model), **stores) as instance:
        instance.wait_until_ready()
        assert set(PROCESSES) - set(instance.pids()) == {"postgres", "valkey"}
        with instance.client() as client:
            job = client.post("/v1/jobs", json={"model": served_model(client), "prompt": "a", "max_tokens": 4}).json()
            assert client.get(job["links"]["self"], headers={"Prefer": "wait=60"}).json()["status"] == "succeeded"
        assert instance.stop() == 0


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.HTTPError:
        return False
