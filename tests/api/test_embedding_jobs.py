"""POST /v1/jobs with the kind `embedding`: one prompt, one vector, and all that a job has beside."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.hand_worker import HandWorker
from tests.api.sse import events
from workers.text.tokenizer import Tokenizer

VECTOR = [0.6, 0.0, -0.8]
BODY: dict[str, Any] = {"model": "tiny", "kind": "embedding", "prompt": "the mill"}


def embed(worker: HandWorker, job_id: str) -> list[int]:
    """Do the job; its prompt's token ids."""
    claimed = worker.start(job_id)
    assert (claimed.kind, claimed.max_tokens) == ("embedding", 0)
    worker.end(job_id, embedding=VECTOR)
    return claimed.prompt_token_ids


async def test_its_output_is_the_vector_of_its_prompt(client, worker) -> None:
    late = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    more = {"tier": "low", "metadata": {"book": "42"}, "run_for": 60, "finish_by": late}
    reply = await client.post("/v1/jobs", json=BODY | more)
    job = reply.json()
    assert (reply.status_code, job["kind"], job["status"], job["position"]) == (202, "embedding", "queued", 1)
    assert embed(worker, job["id"]) == Tokenizer.load(worker.card.tokenizer_path).encode("the mill")
    ended = (await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=30"})).json()
    assert (ended["status"], ended["kind"], ended["tier"], ended["max_tokens"]) == ("succeeded", "embedding", "low", 0)
    assert ended["output"]["embedding"] == pytest.approx(VECTOR)
    assert (ended["output"]["text"], ended["output"]["token_ids"]) == ("", [])
    assert (ended["metadata"], ended["usage"]["completion_tokens"]) == ({"book": "42"}, 0)


async def test_its_events_tell_its_start_and_its_vector(client, worker) -> None:
    job_id = (await client.post("/v1/jobs", json=BODY | {"prompt": [5, 6, 7]})).json()["id"]
    assert embed(worker, job_id) == [5, 6, 7]
    told = [event async for event in events(await client.get(f"/v1/jobs/{job_id}/events"))]
    assert [(event.number, event.name) for event in told] == [
        (0, "job.queued"),
        (1, "job.started"),
        (2, "job.succeeded"),
    ]
    assert told[-1].data["output"]["embedding"] == pytest.approx(VECTOR)


async def test_its_prompt_may_fill_the_model_and_no_token_more(client, worker) -> None:
    embed(worker, (await client.post("/v1/jobs", json=BODY | {"prompt": [5] * 64})).json()["id"])
    error = (await client.post("/v1/jobs", json=BODY | {"prompt": [5] * 65})).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"] == "The prompt has 65 tokens; 'tiny' takes 64 in all. Shorten the prompt."


async def test_one_idempotency_key_makes_one_of_them(client, worker) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = [(await client.post("/v1/jobs", json=BODY, headers=headers)).json()["id"] for _ in range(2)]
    assert first == second
    text = {"model": "tiny", "prompt": "the mill"}
    assert (await client.post("/v1/jobs", json=text, headers=headers)).status_code == 422


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 8}, "max_tokens"),
        ({"temperature": 0}, "temperature"),
        ({"n": 2}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"structured_output": {"choice": ["a"]}}, "structured_output"),
        ({"prompt": None, "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt[0]"),
        ({"input": "a"}, "input"),
        ({"kind": "vector"}, "kind"),
    ],
)
async def test_what_is_not_for_an_embedding_is_refused_by_its_name(client, worker, fields, param) -> None:
    reply = await client.post("/v1/jobs", json=BODY | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert (await client.get("/v1/jobs")).json()["data"] == []
