"""The main job, end to end: the real processes, the real model, what the first screen says to paste."""

import json
import shlex

from standardwebhooks import Webhook

from tests.e2e.instance import HEADRACE, Instance, flower, served_model, shell, wait_until
from tests.receiver import receiver


def test_the_pasted_curl_line_makes_a_job_that_succeeds(instance: Instance) -> None:
    submitted = json.loads(shell(instance.line("curl "), instance.run_dir))
    with instance.client() as client:
        job = client.get(submitted["links"]["self"], headers={"Prefer": "wait=60"}).json()
    assert job["status"] == "succeeded"
    assert len(job["output"]["text"].split()) > 10  # words, and not one long one
    assert job["usage"]["completion_tokens"] <= 64


def test_the_pasted_submit_line_streams_a_text(instance: Instance) -> None:
    text = shell(instance.line("HEADRACE_URL=") + " -n 16", instance.run_dir.parent.parent)
    assert len(text.split()) > 5


def test_tail_follows_a_job_that_was_submitted_before(instance: Instance) -> None:
    with instance.client() as client:
        body = {"model": served_model(client), "prompt": "Water", "max_tokens": 16}
        job = client.post("/v1/jobs", json=body).json()
        text = shell(f"{shlex.quote(HEADRACE)} tail {job['id']}", instance.run_dir, **instance.environment)
        assert text.strip() == client.get(job["links"]["self"]).json()["output"]["text"].strip()


def test_a_receiver_verifies_the_webhook_with_the_printed_secret(instance: Instance) -> None:
    secret = (instance.run_dir.parent / "webhook-secret").read_text().strip()
    assert secret in instance.screen
    with receiver() as endpoint, instance.client() as client:
        body = {"model": served_model(client), "prompt": "Water", "max_tokens": 4, "webhook_url": endpoint.url}
        job = client.post("/v1/jobs", json=body).json()
        delivery = endpoint.next()
    event = Webhook(secret).verify(delivery.body, delivery.headers)
    assert event["type"] == "job.succeeded"
    assert job["id"] in delivery.body.decode()


def test_flower_shows_the_worker_the_task_and_the_tier_queues(instance: Instance) -> None:
    with instance.client() as client:
        model = served_model(client)
        job = client.post("/v1/jobs", json={"model": model, "prompt": "Water", "max_tokens": 2}).json()
        client.get(job["links"]["self"], headers={"Prefer": "wait=60"})
    wait_until(lambda: job["id"].removeprefix("job_") in {uuid.replace("-", "") for uuid in flower(instance, "tasks")})
    wait_until(lambda: any(name.startswith("engine") for name in flower(instance, "workers?refresh=1")))
    queues = {queue["name"] for queue in flower(instance, "queues/length")["active_queues"]}
    assert {f"generate.{model}.{tier}" for tier in ("high", "normal", "low")} <= queues
