"""How much may wait, in jobs and in tokens, and what a refused client is told."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api.limits import Bound, retry_seconds
from db.job_queries import Load
from db.rates import Drain
from tests.api.serving import api_with
from tests.db.rows import add_job, now

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}  # ten tokens


def bound(num_jobs: int, num_tokens: int) -> Bound:
    async def drain() -> Drain:
        raise AssertionError("nobody is refused here")

    return Bound("The queue", Load(num_jobs, num_tokens), Load(100, 1000), ("JOBS", "TOKENS"), drain)


def test_a_bound_is_reached_exactly_and_an_empty_queue_takes_any_job() -> None:
    assert bound(99, 990).over(10) == Load(0, 0)
    assert bound(100, 990).over(11) == Load(1, 1)
    assert bound(0, 0).over(5000) == Load(0, 0)


def test_the_time_to_come_back_is_when_there_is_room_again_at_the_measured_rate() -> None:
    drain = Drain(jobs_per_second=0.5, tokens_per_second=20.0)
    assert retry_seconds(bound(100, 0), Load(1, 0), drain) == 4.0, "one too many, and one for the next to come"
    assert retry_seconds(bound(9, 990), Load(0, 30), drain) == 2.0
    assert retry_seconds(bound(100, 990), Load(1, 990), drain) == 50.0, "the longer of both"
    assert retry_seconds(bound(100, 0), Load(1, 0), Drain(9000.0, 0.0)) == 1.0
    assert retry_seconds(bound(100, 0), Load(1, 0), Drain(0.001, 0.0)) == 120.0
    assert retry_seconds(bound(100, 0), Load(1, 0), Drain(0.0, 0.0)) == 10.0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("max_queued_tokens", "The normal queue of 'tiny' has 20 of at most 25 tokens waiting"),
        ("max_queued_tokens_per_key", "This key has 20 of at most 25 tokens waiting"),
    ],
)
async def test_tokens_that_wait_are_limited_as_jobs_are(settings, keys, worker, setting: str, says: str) -> None:
    limits = {setting: 25}
    async with api_with(settings, **limits) as client:
        for _ in range(2):
            assert (await client.post("/v1/jobs", json=BODY)).status_code == 202
    async with api_with(settings, **limits) as client:
        full = await client.post("/v1/jobs", json=BODY)
        small = await client.post("/v1/jobs", json=BODY | {"max_tokens": 2})
        other_tier = await client.post("/v1/jobs", json=BODY | {"tier": "low"})
    error = full.json()["error"]
    assert (full.status_code, error["code"], error["type"]) == (429, "queue_full", "rate_limit_error")
    assert says in error["message"] and "this job has 10" in error["message"]
    assert f"HEADRACE_{setting.upper()}" in error["message"]
    assert small.status_code == 202, "five fit"
    assert other_tier.status_code == (202 if setting == "max_queued_tokens" else 429)


async def test_an_empty_queue_takes_a_job_of_more_tokens_than_may_wait(settings, keys, worker) -> None:
    async with api_with(settings, max_queued_tokens=5, max_queued_tokens_per_key=5) as client:
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_running_jobs_make_room(settings, keys, worker) -> None:
    async with api_with(settings, max_queued_tokens=10) as client:
        job = (await client.post("/v1/jobs", json=BODY)).json()
    worker.start(job["id"])
    async with api_with(settings, max_queued_tokens=10) as client:
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_retry_after_comes_from_what_started_lately(settings, keys, worker, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        moment = now(session)
        key_id = UUID(int=9)
        for ago in (50, 40, 30, 20, 10):  # 0.1 a second, and 1.9 tokens
            started_at = moment - timedelta(seconds=ago)
            add_job(session, model="tiny", key_id=key_id, status="running", started_at=started_at)
        for _ in range(4):
            add_job(session, model="tiny", key_id=key_id)
    async with api_with(settings, max_queued_jobs=4) as client:
        reply = await client.post("/v1/jobs", json=BODY)
    milliseconds = int(reply.headers["retry-after-ms"])
    assert milliseconds == pytest.approx(10_400, rel=0.1)
    assert 0 <= int(reply.headers["retry-after"]) * 1000 - milliseconds < 1000, "never early"
    assert "4 of at most 4 jobs waiting" in reply.json()["error"]["message"]
    assert "jobs a second started" in reply.json()["error"]["message"]


async def test_queues_tell_how_many_tokens_wait(client, submit) -> None:
    await submit(prompt=[1, 2, 3], max_tokens=7)
    waiting = {queue["tier"]: queue["waiting_tokens"] for queue in (await client.get("/v1/queues")).json()["data"]}
    assert waiting == {"high": 0, "normal": 10, "low": 0}
    assert 'headrace_tokens_queued{model="tiny",tier="normal"} 10.0' in (await client.get("/metrics")).text
