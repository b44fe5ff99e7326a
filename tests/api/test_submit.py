"""POST /v1/jobs: what is accepted, what is refused, and with which words."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from sqlalchemy import Engine, delete

from api.schemas import JobCreate
from api.submission import Submission
from db.ids import new_id
from db.models import Worker
from db.queue import depths
from tests.api.serving import api_with

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the mill wheel", "max_tokens": 8}


async def test_a_submitted_job_is_queued_in_both_stores_and_says_its_place(client, worker, redis_client) -> None:
    reply = await client.post("/v1/jobs", json=BODY | {"metadata": {"book": "42"}, "seed": 7})
    job = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert (job["status"], job["tier"], job["position"], job["attempt"]) == ("queued", "normal", 1, 0)
    assert job["estimate"]["start_in_seconds"] == 0.0, "four seats are free"
    assert (job["seed"], job["metadata"], job["max_tokens"]) == (7, {"book": "42"}, 8)
    assert depths(redis_client, "tiny") == {0: 0, 1: 1, 2: 0}
    assert (await client.get(job["links"]["self"])).json()["id"] == job["id"]


async def test_messages_are_refused_without_a_template_and_rendered_with_one(client, make_worker) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 4}
    make_worker(model="base")
    make_worker(model="chat", chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    make_worker(model="picky", chat_template="{{ raise_exception('I want a system message') }}")
    error = (await client.post("/v1/jobs", json=body | {"model": "base"})).json()["error"]
    assert (error["code"], error["param"]) == ("no_chat_template", "messages")
    assert "HEADRACE_CHAT_TEMPLATE" in error["message"]
    assert (await client.post("/v1/jobs", json=body | {"model": "chat"})).status_code == 202
    refused = await client.post("/v1/jobs", json=body | {"model": "picky"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "chat_template_error")
    assert "I want a system message" in refused.json()["error"]["message"]


async def test_max_tokens_defaults_to_the_room_that_is_left(client, make_worker) -> None:
    make_worker(max_model_len=100_000, num_blocks=10_000)
    unlimited = (await client.post("/v1/jobs", json={"model": "tiny", "prompt": [1, 2, 3]})).json()
    make_worker(model="short")
    limited = (await client.post("/v1/jobs", json={"model": "short", "prompt": [1, 2, 3]})).json()
    assert (unlimited["max_tokens"], limited["max_tokens"]) == (256, 61)


async def test_prompt_and_output_may_fill_the_model_to_the_last_token(client, worker) -> None:
    for num_prompt, max_tokens in ((32, 31), (32, 32), (63, 1)):
        body = {"model": "tiny", "prompt": [5] * num_prompt, "max_tokens": max_tokens}
        assert (await client.post("/v1/jobs", json=body)).status_code == 202
    reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": [5] * 32, "max_tokens": 33})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
    for number in ("32 tokens", "33", "65", "64 in all", "at most 32"):
        assert number in error["message"]


async def test_a_prompt_without_any_room_left_is_told_to_be_shorter(client, worker) -> None:
    for body in ({"prompt": [5] * 64}, {"prompt": [5] * 64, "max_tokens": 1}):
        error = (await client.post("/v1/jobs", json={"model": "tiny"} | body)).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "Shorten the prompt" in error["message"]


async def test_what_the_kv_cache_can_never_hold_is_refused_with_its_size(client, make_worker) -> None:
    make_worker(num_blocks=2)
    reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": [5] * 30, "max_tokens": 3})
    assert reply.status_code == 400
    assert "KV cache of 'tiny' holds 32" in reply.json()["error"]["message"]


async def test_an_unknown_model_is_a_404_that_names_the_served_ones(client, worker) -> None:
    error = (await client.post("/v1/jobs", json=BODY | {"model": "huge"})).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny'" in error["message"]


async def test_a_model_is_known_as_soon_as_it_registers_though_it_was_asked_for_just_before(
    client, worker, make_worker
) -> None:
    body = BODY | {"model": "late"}
    assert (await client.post("/v1/jobs", json=body)).status_code == 404
    make_worker(id=new_id(), model="late")
    assert (await client.post("/v1/jobs", json=body)).status_code == 202


async def test_before_any_worker_has_registered_the_answer_is_a_503_to_retry(client) -> None:
    reply = await client.post("/v1/jobs", json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_loading")
    assert int(reply.headers["retry-after"]) > 0


async def test_bodies_that_are_no_json_are_told_so(client) -> None:
    broken = await client.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    form = await client.post("/v1/jobs", data={"model": "tiny"})
    nan = await client.post("/v1/jobs", content=b'{"model":"tiny","prompt":"x","temperature":NaN}')
    surrogate = await client.post("/v1/jobs", content=b'{"model":"tiny","prompt":"\\ud800"}')
    assert [reply.status_code for reply in (broken, form, nan, surrogate)] == [400] * 4
    assert "not valid JSON" in broken.json()["error"]["message"]
    assert "Content-Type: application/json" in form.json()["error"]["message"]


async def test_a_repeated_idempotency_key_returns_the_first_job_and_another_body_is_refused(
    client, worker, redis_client: redis.Redis
) -> None:
    headers = {"Idempotency-Key": "order-1"}
    copies = await asyncio.gather(*(client.post("/v1/jobs", json=BODY, headers=headers) for _ in range(50)))
    respelled = await client.post("/v1/jobs", json=dict(reversed(BODY.items())), headers=headers)
    assert len({reply.json()["id"] for reply in [*copies, respelled]}) == 1
    assert sum(depths(redis_client, "tiny").values()) == 1
    other = await client.post("/v1/jobs", json=BODY | {"max_tokens": 9}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")


async def test_a_repeat_finds_its_job_after_the_time_it_was_to_start_by(client, worker) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    body, headers = BODY | {"start_by": soon.isoformat()}, {"Idempotency-Key": "k"}
    first = await client.post("/v1/jobs", json=body, headers=headers)
    while (late := await client.post("/v1/jobs", json=body)).status_code == 202:
        await asyncio.sleep(0.05)
    assert (late.status_code, late.json()["error"]["param"]) == (400, "start_by")
    repeat = await client.post("/v1/jobs", json=body, headers=headers)
    assert (repeat.status_code, repeat.json()["id"]) == (202, first.json()["id"])


async def test_a_repeat_finds_its_job_though_its_model_is_gone(settings, keys, worker, engine: Engine) -> None:
    headers = {"Idempotency-Key": "k"}
    async with api_with(settings) as client:
        first = await client.post("/v1/jobs", json=BODY, headers=headers)
    with engine.begin() as connection:
        connection.execute(delete(Worker))
    async with api_with(settings) as client:
        repeat = await client.post("/v1/jobs", json=BODY, headers=headers)
        other = await client.post("/v1/jobs", json=BODY | {"max_tokens": 9}, headers=headers)
        new = await client.post("/v1/jobs", json=BODY)
    assert (repeat.status_code, repeat.json()["id"]) == (202, first.json()["id"])
    assert (other.status_code, new.status_code) == (422, 503)


class LaterVersion(JobCreate):
    """The body as a later version may have it."""

    temperature: float = 0.5
    new_field: int = 1


def test_of_a_body_only_what_was_sent_is_digested_so_that_defaults_may_change() -> None:
    bodies = [LaterVersion(**BODY), JobCreate(**BODY), JobCreate(**BODY, top_p=None), JobCreate(**BODY, top_p=1.0)]
    now, then, null, explicit = (Submission("job", body, None, None, 8, 8, True, None).digest() for body in bodies)
    assert now == then == null
    assert explicit != then, "who says it means it, whatever the default becomes"


async def test_a_key_used_for_a_job_is_refused_for_a_completion(client, worker) -> None:
    headers = {"Idempotency-Key": "k"}
    await client.post("/v1/jobs", json=BODY, headers=headers)
    reply = await client.post("/v1/completions", json=BODY, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "idempotency_mismatch")


async def test_a_job_beyond_its_keys_window_is_parked_and_counted_in_the_position(
    settings, keys, worker, redis_client
) -> None:
    async with api_with(settings, key_window=2) as client:
        jobs = [(await client.post("/v1/jobs", json=BODY)).json() for _ in range(3)]
    assert [job["ready_at"] is None for job in jobs] == [False, False, True]
    assert [job["position"] for job in jobs] == [1, 2, 3]
    assert depths(redis_client, "tiny")[1] == 2


async def test_a_full_queue_answers_429_with_a_time_but_still_knows_repeated_submits(settings, keys, worker) -> None:
    async with api_with(settings, max_queued_jobs=1) as client:
        first = await client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"})
    async with api_with(settings, max_queued_jobs=1) as client:
        full = await client.post("/v1/jobs", json=BODY)
        keyed = await client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "new"})
        again = await client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"})
        other_tier = await client.post("/v1/jobs", json=BODY | {"tier": "high"})
        assert len((await client.get("/v1/jobs")).json()["data"]) == 2
    for reply in (full, keyed):
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
    assert full.json()["error"]["type"] == "rate_limit_error"
    assert int(full.headers["retry-after"]) * 1000 == int(full.headers["retry-after-ms"])
    assert again.json()["id"] == first.json()["id"]
    assert other_tier.status_code == 202


async def test_one_keys_share_of_the_queue_is_limited(settings, keys, worker) -> None:
    async with api_with(settings, max_queued_jobs_per_key=1) as client:
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202
    async with api_with(settings, max_queued_jobs_per_key=1) as client:
        reply = await client.post("/v1/jobs", json=BODY)
    assert reply.status_code == 429
    assert "This key has 1 of at most 1 jobs" in reply.json()["error"]["message"]


async def test_limits_in_time_are_kept_as_sent(client, worker) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    body = BODY | {"start_by": moment.isoformat(), "finish_by": moment.isoformat(), "run_for": 2.5}
    job = (await client.post("/v1/jobs", json=body)).json()
    assert datetime.fromisoformat(job["start_by"]) == datetime.fromisoformat(job["finish_by"]) == moment
    assert job["run_for"] == 2.5
