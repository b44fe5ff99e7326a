"""Stopping in the middle of work: what can end does, the rest goes on at the next start."""

import signal
from pathlib import Path

import httpx

from tests.e2e.instance import Instance, running, wait_until

LONG = {"model": "tiny", "prompt": "Water", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


def start_long_job(instance: Instance) -> str:
    """The path of a job that is in the middle of its text."""
    with instance.client() as client:
        path = str(client.post("/v1/jobs", json=LONG).json()["links"]["self"])
        wait_until(lambda: client.get(path).json()["status"] == "running")
    return path


def ended(client: httpx.Client, path: str) -> dict[str, object]:
    job: dict[str, object] = client.get(path, headers={"Prefer": "wait=60"}).json()
    return job


def test_stopping_ends_every_process_and_a_running_job_ends_in_the_drain_or_goes_on_at_the_next_start(
    tmp_path: Path, tiny_model: Path
) -> None:
    with running(tmp_path, HEADRACE_MODEL=str(tiny_model)) as instance:
        instance.wait_until_ready()
        drained = start_long_job(instance)
        instance.assert_stops(signal.SIGTERM)
    with running(tmp_path, HEADRACE_MODEL=str(tiny_model), HEADRACE_DRAIN_SECONDS="0") as instance:
        instance.wait_until_ready()
        with instance.client() as client:
            first = client.get(drained).json()
            assert (first["status"], first["attempt"]) == ("succeeded", 1)
        handed_back = start_long_job(instance)
        instance.assert_stops(signal.SIGINT)
    with running(tmp_path, HEADRACE_MODEL=str(tiny_model)) as instance:
        instance.wait_until_ready()
        with instance.client() as client:
            second = ended(client, handed_back)
    assert (second["status"], second["attempt"]) == ("succeeded", 2)
    assert second["output"] == first["output"]
