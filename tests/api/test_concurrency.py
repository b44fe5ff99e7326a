"""Jobs at once of a key: never one too many, whoever counts, and room again when one has ended."""

import asyncio
from contextlib import AsyncExitStack

from sqlalchemy import text
from sqlalchemy.orm import Session

from api.limits import MAX_RETRY_SECONDS
from db.keys import key_row
from tests.api.limited_keys import api_of, make_key
from tests.db.rows import add_job

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


async def test_of_many_submits_at_once_to_two_processes_as_many_are_accepted_as_the_key_may_have(
    settings, engine, worker
) -> None:
    key = make_key(engine, concurrent_jobs=3)
    async with api_of(settings, key) as one, api_of(settings, key) as other:
        replies = await asyncio.gather(*(client.post("/v1/jobs", json=BODY) for client in (one, other) * 10))
        assert sorted(reply.status_code for reply in replies) == [202] * 3 + [429] * 17
        listed = (await one.get("/v1/jobs")).json()["data"]
    assert len(listed) == 3
    refused = next(reply for reply in replies if reply.status_code == 429)
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("too_many_jobs", "rate_limit_error")
    assert "3 jobs queued and running at once" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= MAX_RETRY_SECONDS


async def test_a_submit_counts_when_the_one_that_counted_before_is_through(settings, engine, worker) -> None:
    key = make_key(engine, concurrent_jobs=1)
    with Session(engine) as other:
        key_id = key_row(other, key).id
        other.execute(LOCK, {"name": f"headrace key {key_id}"})
        async with api_of(settings, key) as client:
            submit = asyncio.create_task(client.post("/v1/jobs", json=BODY))
            while not other.scalar(WAITING):
                assert not submit.done(), "it does not wait"
                await asyncio.sleep(0.005)
            add_job(other, key_id=key_id)
            other.commit()
            assert (await submit).json()["error"]["code"] == "too_many_jobs"


async def test_of_many_requests_at_once_with_several_prompts_each_is_let_in_whole_or_refused(
    settings, engine, worker
) -> None:
    key = make_key(engine, concurrent_jobs=5)
    body = BODY | {"prompt": [[1], [2]], "stream": True}
    async with api_of(settings, key) as one, api_of(settings, key) as other, AsyncExitStack() as streams:
        asking = [client.stream("POST", "/v1/completions", json=body) for client in (one, other) * 5]
        replies = await asyncio.gather(*(streams.enter_async_context(each) for each in asking))
        assert sorted(reply.status_code for reply in replies) == [200] * 2 + [429] * 8
        refused = next(reply for reply in replies if reply.status_code == 429)
        await refused.aread()
        assert refused.json()["error"]["code"] == "too_many_jobs"
        assert len((await one.get("/v1/jobs")).json()["data"]) == 4


async def test_a_running_job_counts_until_it_has_ended(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, concurrent_jobs=1)) as client:
        job = (await client.post("/v1/jobs", json=BODY)).json()
        worker.start(job["id"])
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 429
        worker.end(job["id"])
        assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_jobs_of_other_keys_do_not_count(settings, engine, worker) -> None:
    for _ in range(2):
        async with api_of(settings, make_key(engine, concurrent_jobs=1)) as client:
            assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_who_is_refused_for_its_jobs_keeps_its_tokens(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, concurrent_jobs=1, tokens_per_minute=25)) as client:
        await client.post("/v1/jobs", json=BODY)
        refused = await client.post("/v1/jobs", json=BODY)
    assert refused.json()["error"]["code"] == "too_many_jobs"
    assert int(refused.headers["x-ratelimit-remaining-tokens"]) >= 15


async def test_copies_of_one_submit_are_one_job_though_there_is_room_for_no_more(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, concurrent_jobs=1)) as client:
        copies = await asyncio.gather(
            *(client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"}) for _ in range(10))
        )
        other = await client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k2"})
        assert len((await client.get("/v1/jobs")).json()["data"]) == 1
    assert [reply.status_code for reply in copies] == [202] * 10
    assert other.status_code == 429


async def test_a_page_of_replays_ends_where_the_key_has_its_jobs(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine)) as client:
        for _ in range(3):
            job = (await client.post("/v1/jobs", json=BODY)).json()
            await client.post(f"/v1/jobs/{job['id']}/cancel")
    async with api_of(settings, make_key(engine, concurrent_jobs=2)) as client:
        page = (await client.post("/v1/jobs/replay", json={"status": "cancelled"})).json()
        refused = await client.post("/v1/jobs/replay", json={"status": "cancelled"})
    assert (len(page["data"]), page["has_more"]) == (2, True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_jobs")
