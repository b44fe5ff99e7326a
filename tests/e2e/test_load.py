"""Many jobs at once on the real model: every one ends, the seats hold, and a killed worker changes no text."""

import os
import signal
from itertools import accumulate, cycle, islice
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from db.session import make_engine
from db.settings import TIERS, Settings
from tests.e2e.instance import Instance, flower, served_model, wait_until
from tests.receiver import receiver

NUM_JOBS = 200
NUM_SEATS = Settings.model_fields["max_num_seqs"].default
NUM_KILLED = 20
MOST_WAIT_SECONDS = 240
OPENINGS = ("The river", "In the morning", "Nobody knew", "A mill is", "Water turns", "The last train", "She wrote")

pytestmark = pytest.mark.timeout(400)


def test_two_hundred_jobs_of_mixed_tiers_all_succeed_within_the_seats(instance: Instance) -> None:
    with instance.client() as client:
        with frozen(instance.pid("worker")):
            jobs = [
                submit(client, prompt, tier=tier, max_tokens=6)
                for prompt, tier in islice(zip(cycle(OPENINGS), cycle(TIERS), strict=False), NUM_JOBS)
            ]
            model = jobs[0]["model"]
            counted = ready_in_postgres(instance, model)
            assert sum(counted.values()) + parked(client) == NUM_JOBS
            wait_until(lambda: queued_by_api(client) == counted)
            assert queued_by_flower(instance, model) == counted
        ended = wait_ended(client, jobs)
    assert {job["status"] for job in ended} == {"succeeded"}
    assert most_at_once(ended) <= NUM_SEATS


def test_a_killed_worker_changes_no_text_and_loses_no_webhook(instance: Instance) -> None:
    """Greedy, in fp32: what the next worker continues is what the first would have written."""
    prompts = [f"{opening} number {n}" for n, opening in zip(range(NUM_KILLED), cycle(OPENINGS), strict=False)]
    with instance.client() as client, receiver() as endpoint:
        undisturbed = wait_ended(client, [submit(client, prompt, max_tokens=12) for prompt in prompts])
        jobs = [submit(client, prompt, max_tokens=12, webhook_url=endpoint.url) for prompt in prompts]
        wait_until(lambda: all(is_running(client, job) for job in jobs))
        os.kill(instance.pid("worker"), signal.SIGKILL)
        ended = wait_ended(client, jobs)
        events = {endpoint.next().headers["webhook-id"] for _ in jobs}
    assert [job["output"]["text"] for job in ended] == [job["output"]["text"] for job in undisturbed]
    assert {job["attempt"] for job in ended} == {2}
    assert len(events) == NUM_KILLED


class frozen:
    """A process that stands still inside the block."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *exception: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def submit(client: httpx.Client, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": served_model(client), "prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def wait_ended(client: httpx.Client, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ended = []
    for job in jobs:
        wait_until(lambda: get(client, job, wait=60)["ended_at"] is not None, seconds=MOST_WAIT_SECONDS)  # noqa: B023
        ended.append(get(client, job))
    return ended


def get(client: httpx.Client, job: dict[str, Any], *, wait: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = client.get(job["links"]["self"], headers={"Prefer": f"wait={wait}"} if wait else {}).json()
    return found


def is_running(client: httpx.Client, job: dict[str, Any]) -> bool:
    return bool(get(client, job)["status"] == "running")


def ready_in_postgres(instance: Instance, model: str) -> dict[str, int]:
    """How many jobs of each tier are queued and ready, as the rows say."""
    settings = Settings(data_dir=instance.run_dir.parent, _env_file=None)
    statement = (
        "SELECT tier, count(*) FROM jobs WHERE status = 'queued' AND ready_at IS NOT NULL AND model = :model GROUP BY 1"
    )
    with make_engine(settings).connect() as connection:
        rows = connection.execute(text(statement), {"model": model}).all()
    return {TIERS[tier]: count for tier, count in rows}


def queued_by_api(client: httpx.Client) -> dict[str, int]:
    return {row["tier"]: row["queued"] for row in client.get("/v1/queues").json()["data"]}


def parked(client: httpx.Client) -> int:
    return sum(row["parked"] for row in client.get("/v1/queues").json()["data"])


def queued_by_flower(instance: Instance, model: str) -> dict[str, int]:
    lengths = {queue["name"]: queue["messages"] for queue in flower(instance, "queues/length")["active_queues"]}
    return {tier: int(str(lengths[f"generate.{model}.{tier}"])) for tier in TIERS}


def most_at_once(jobs: list[dict[str, Any]]) -> int:
    """The most jobs that were running at one time, from when they started and ended."""
    changes = sorted([(job["started_at"], 1) for job in jobs] + [(job["ended_at"], -1) for job in jobs])
    return max(accumulate(change for _, change in changes))
