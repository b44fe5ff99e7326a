"""Looking at jobs, waiting for them, listing, cancelling, deleting."""

import asyncio

import pytest

from db.models import Status
from tests.api.hand_worker import HandWorker
from tests.api.serving import api_with


async def test_an_ended_job_shows_output_and_usage(client, worker, submit) -> None:
    job = await submit(logprobs=1)
    worker.start(job["id"])
    worker.say(job["id"], " turns", " on", logprobs=True)
    worker.end(job["id"])
    ended = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert (ended["status"], ended["attempt"], ended["position"], ended["estimate"]) == ("succeeded", 1, None, None)
    assert ended["output"] == {
        "text": " turns on",
        "content": None,
        "tool_calls": None,
        "finish_reason": "stop",
        "token_ids": [10, 11],
        "logprobs": [{"logprob": -0.5, "top": [[10, -0.5]]}] * 2,
        "choices": None,
        "prompt_logprobs": None,
        "embedding": None,
    }
    assert ended["usage"]["completion_tokens"] == 2
    assert ended["usage"]["total_tokens"] == ended["usage"]["prompt_tokens"] + 2
    assert ended["started_at"] <= ended["ended_at"]


async def test_a_failed_job_says_why_and_keeps_what_it_wrote(client, worker, submit) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " half")
    worker.end(job["id"], Status.FAILED, error_code="nan_logits", error_message="the model computed no number")
    ended = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert ended["error"] == {"code": "nan_logits", "message": "the model computed no number"}
    assert (ended["output"]["text"], ended["output"]["finish_reason"]) == (" half", None)


async def test_waiting_answers_as_soon_as_the_job_has_ended(client, worker, submit) -> None:
    job = await submit()
    headers = {"Prefer": "respond-async, wait=60"}
    waiting = [asyncio.create_task(client.get(f"/v1/jobs/{job['id']}", headers=headers)) for _ in range(3)]
    worker.start(job["id"])
    worker.say(job["id"], " a", " b")
    assert not any(task.done() for task in waiting)
    worker.end(job["id"])
    replies = await asyncio.gather(*waiting)
    assert [reply.json()["status"] for reply in replies] == ["succeeded"] * 3
    assert replies[0].headers["preference-applied"] == "wait=60"


async def test_waiting_in_vain_answers_with_the_job_as_it_is(client, submit) -> None:
    job = await submit()
    reply = await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=1"})
    assert (reply.status_code, reply.json()["status"], reply.json()["position"]) == (200, "queued", 1)
    wrong = await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Prefer")


async def test_a_job_of_another_tenant_is_a_404_everywhere(client, stranger, worker, submit) -> None:
    job = await submit()
    path = f"/v1/jobs/{job['id']}"
    replies = [
        await stranger.get(path),
        await stranger.get(f"{path}/events"),
        await stranger.get(f"{path}/deliveries"),
        await stranger.post(f"{path}/cancel"),
        await stranger.delete(path),
        await stranger.get(f"/v1/jobs/job_{'0' * 32}"),
        await stranger.get("/v1/jobs/nonsense"),
    ]
    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in replies] == [(404, "job_not_found")] * 7
    assert (await stranger.get("/v1/jobs")).json()["data"] == []
    assert (await client.get(path)).json()["status"] == "queued"


async def test_pages_and_filters_select_what_they_say(client, worker, submit) -> None:
    jobs = [await submit(tier=tier, metadata={"n": str(n)}) for n, tier in enumerate(("low", "high", "low"))]
    ids = [job["id"] for job in reversed(jobs)]
    worker.run(jobs[0]["id"], " x")

    async def listed(query: str) -> list[str]:
        return [job["id"] for job in (await client.get(f"/v1/jobs?{query}")).json()["data"]]

    first = (await client.get("/v1/jobs?limit=2")).json()
    assert [job["id"] for job in first["data"]] == ids[:2]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[0], ids[1], True)
    last = (await client.get(f"/v1/jobs?limit=2&after={first['last_id']}")).json()
    assert ([job["id"] for job in last["data"]], last["has_more"]) == (ids[2:], False)
    assert await listed("tier=low") == [ids[0], ids[2]]
    assert await listed("status=succeeded") == [ids[2]]
    assert await listed("model=huge") == []
    assert await listed("metadata[n]=1") == [ids[1]]
    assert (await client.get("/v1/jobs?after=42")).json()["error"]["param"] == "after"
    assert (await client.get("/v1/jobs?model=%00")).json()["error"]["param"] == "model"
    assert (await client.get("/v1/jobs?metadata[a]=%00")).json()["error"]["param"] == "metadata"
    assert (await client.get("/v1/jobs?limit=1000")).json()["error"]["param"] == "limit"


async def test_a_list_shows_jobs_without_outputs_positions_and_estimates(client, worker, submit) -> None:
    ended = await submit(metadata={"n": "1"}, webhook_url="https://example.com/x", logprobs=1)
    worker.start(ended["id"])
    worker.say(ended["id"], " x", logprobs=True)
    worker.end(ended["id"])
    waiting = await submit(stream=False)
    listed = (await client.get("/v1/jobs")).json()["data"]
    whole = [(await client.get(f"/v1/jobs/{job['id']}")).json() for job in (waiting, ended)]
    left_out = {"output": None, "position": None, "estimate": None}
    assert listed == [job | left_out for job in whole]
    assert (whole[0]["position"], whole[1]["output"]["text"]) == (1, " x")
    assert [(job["kind"], job["stream"], job["metadata"]) for job in listed] == [
        ("job", False, {}),
        ("job", True, {"n": "1"}),
    ]


async def test_a_waiting_job_is_cancelled_at_once_and_twice_is_the_same(client, submit) -> None:
    job = await submit()
    first = await client.post(f"/v1/jobs/{job['id']}/cancel")
    second = await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["status"] == "cancelled"
    assert first.json() == second.json()


async def test_cancelling_a_finished_job_changes_nothing(client, worker, submit) -> None:
    job = await submit()
    worker.run(job["id"], " done")
    reply = await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (reply.status_code, reply.json()["status"], reply.json()["output"]["text"]) == (200, "succeeded", " done")


async def test_a_running_job_is_cancelled_by_its_worker_with_its_last_tokens(client, worker, submit) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one")
    cancelling = asyncio.create_task(client.post(f"/v1/jobs/{job['id']}/cancel"))
    assert await cancel_signal(worker) == job["id"].removeprefix("job_")
    worker.say(job["id"], " two")
    worker.end(job["id"], Status.CANCELLED)
    ended = (await cancelling).json()
    assert (ended["status"], ended["output"]["text"]) == ("cancelled", " one two")


async def test_a_running_job_whose_worker_is_silent_is_cancelled_with_what_it_streamed(
    client, worker, submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.1)
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one")
    ended = (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()
    assert (ended["status"], ended["output"]["text"], ended["usage"]["completion_tokens"]) == ("cancelled", " one", 1)
    assert (await client.get(f"/v1/jobs/{job['id']}")).json() == ended


async def test_only_an_ended_job_is_deleted(client, submit) -> None:
    job = await submit()
    refused = await client.delete(f"/v1/jobs/{job['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_not_ended")
    assert refused.headers["x-should-retry"] == "false"
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (await client.delete(f"/v1/jobs/{job['id']}")).json() == {"id": job["id"], "object": "job", "deleted": True}
    assert (await client.get(f"/v1/jobs/{job['id']}")).status_code == 404


async def test_a_queue_that_moves_gives_the_waiting_an_estimate(settings, worker, submit) -> None:
    for job in [await submit() for _ in range(4)]:
        worker.start(job["id"])
    last = await submit()
    async with api_with(settings) as client:
        waiting = (await client.get(f"/v1/jobs/{last['id']}")).json()
    assert waiting["position"] == 1
    assert waiting["estimate"]["start_in_seconds"] > 0


async def cancel_signal(worker: HandWorker) -> str:
    """The job that the next published cancel names. The publisher finds the row marked first, so none is missed."""
    subscription = worker.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(f"cancel.{worker.card.id}")
    while True:
        message = await asyncio.to_thread(subscription.get_message, timeout=1.0)
        if message is not None:
            return str(message["data"].decode()).replace("-", "")
