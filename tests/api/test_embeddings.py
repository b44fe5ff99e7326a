"""POST /v1/embeddings: a job for each input, refused or accepted together, and ended together."""

import asyncio
import base64
import struct
from typing import Any

import httpx
import pytest

from db.models import Status
from tests.api.hand_worker import HandWorker
from tests.api.serving import api_with
from workers.text.tokenizer import Tokenizer

VECTOR = [0.6, 0.0, -0.8]
BODY: dict[str, Any] = {"model": "tiny", "input": "the mill"}


async def jobs_of(client: httpx.AsyncClient, num: int) -> list[dict[str, Any]]:
    """The jobs, oldest first, once there are so many."""
    while True:
        jobs = (await client.get("/v1/jobs")).json()["data"]
        if len(jobs) == num:
            return jobs[::-1]


def embed(worker: HandWorker, job_id: str, vector: list[float] = VECTOR) -> list[int]:
    """Do the job; its prompt's token ids."""
    claimed = worker.start(job_id)
    assert (claimed.kind, claimed.max_tokens) == ("embedding", 0)
    worker.end(job_id, embedding=vector)
    return claimed.prompt_token_ids


async def test_each_input_is_a_job_and_the_answer_has_their_order(client, worker) -> None:
    tokenizer = Tokenizer.load(worker.card.tokenizer_path)
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"input": ["the mill", [5, 6, 7]]}))
    first, second = await jobs_of(client, 2)
    assert embed(worker, second["id"], [0.0, 1.0, 0.0]) == [5, 6, 7]
    token_ids = embed(worker, first["id"])
    assert token_ids == tokenizer.encode("the mill")
    reply = await asking
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert [(each["object"], each["index"]) for each in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert answer["data"][0]["embedding"] == pytest.approx(VECTOR) and answer["data"][1]["embedding"] == [0, 1, 0]
    num_tokens = len(token_ids) + 3
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (answer["object"], answer["model"]) == ("list", "tiny")


async def test_base64_is_the_bytes_of_the_floats(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"encoding_format": "base64"}))
    [job] = await jobs_of(client, 1)
    embed(worker, job["id"])
    encoded = (await asking).json()["data"][0]["embedding"]
    assert struct.unpack("<3f", base64.b64decode(encoded)) == pytest.approx(VECTOR)


async def test_the_job_behind_an_embedding_shows_its_vector(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"tier": "low"}))
    [job] = await jobs_of(client, 1)
    embed(worker, job["id"])
    await asking
    shown = (await client.get(f"/v1/jobs/{job['id']}")).json()
    assert (shown["kind"], shown["tier"], shown["status"]) == ("embedding", "low", "succeeded")
    assert shown["output"]["embedding"] == pytest.approx(VECTOR) and shown["output"]["text"] == ""
    assert shown["usage"]["completion_tokens"] == 0


async def test_the_failure_of_one_is_the_answer_and_cancels_the_others(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"input": ["a", "b", "c"]}))
    first, second, third = await jobs_of(client, 3)
    worker.start(second["id"])
    worker.end(second["id"], Status.FAILED, error_code="engine_error", error_message="it broke")
    reply = await asking
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_error")
    assert "it broke" in reply.json()["error"]["message"]
    for job in (first, third):
        ended = await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=30"})
        assert ended.json()["status"] == "cancelled"


async def test_a_client_that_leaves_cancels_its_jobs(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"input": ["a", "b"]}))
    jobs = await jobs_of(client, 2)
    asking.cancel()
    for job in jobs:
        ended = await client.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=30"})
        assert ended.json()["status"] == "cancelled"


async def test_a_request_is_refused_whole_when_its_last_job_finds_the_queue_full(settings, keys, worker) -> None:
    async with api_with(settings, max_queued_jobs=2) as client:
        reply = await client.post("/v1/embeddings", json=BODY | {"input": ["a", "b", "c"]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_a_prompt_may_fill_the_model_and_no_token_more(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY | {"input": [5] * 64}))
    [job] = await jobs_of(client, 1)
    embed(worker, job["id"])
    assert (await asking).status_code == 200
    error = (await client.post("/v1/embeddings", json=BODY | {"input": [[5], [5] * 65]})).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert error["message"] == "The prompt has 65 tokens; 'tiny' takes 64 in all. Shorten the prompt."


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, None),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", []]}, "input[1]"),
        ({"input": [[5], [600_000]]}, "input[1]"),
        ({"input": [[5], [-1]]}, "input[1][0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": ["a\0"]}, "input[0]"),
        ({"input": None}, "input"),
        ({"dimensions": 2}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"temperature": 1}, "temperature"),
        ({"start_by": "2001-01-01T00:00:00Z"}, "start_by"),
    ],
)
async def test_what_is_wrong_with_a_request_is_named(client, worker, body, param) -> None:
    if body == {"input": ""} and Tokenizer.load(worker.card.tokenizer_path).encode(""):
        return  # the model's first token alone is an input too
    reply = await client.post("/v1/embeddings", json=BODY | body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == (param or "input")
    assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_an_embedding_can_be_replayed_as_one(client, worker) -> None:
    asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY))
    [job] = await jobs_of(client, 1)
    worker.start(job["id"])
    worker.end(job["id"], Status.FAILED, error_code="engine_error", error_message="it broke")
    await asking
    replay = (await client.post(f"/v1/jobs/{job['id']}/replay")).json()
    embed(worker, replay["id"])
    shown = (await client.get(f"/v1/jobs/{replay['id']}")).json()
    assert shown["kind"] == "embedding" and shown["output"]["embedding"] == pytest.approx(VECTOR)
