"""Dead letters: what is told of them, and ended jobs submitted again, one or many, each once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update

from db.models import Job, JobInput, Status, Worker
from db.queue import depths
from tests.api.crashing import crash
from tests.api.hand_worker import uuid_of
from tests.api.serving import api_with
from tests.chat_templates import PLAIN

REPLAY = "/v1/jobs/replay"
SAME = ("model", "tier", "seed", "max_tokens", "metadata", "webhook_url", "stream", "kind", "run_for")


async def ended(client, submit, **fields: Any) -> str:
    """A job that was cancelled before it ran."""
    job_id = (await submit(**fields))["id"]
    await client.post(f"/v1/jobs/{job_id}/cancel")
    return job_id


async def pairs(client, body: dict[str, Any] | None = None, **headers: str) -> dict[str, str]:
    """Old and new ids of one call."""
    reply = await client.post(REPLAY, json=body, headers=headers)
    assert reply.status_code == 202, reply.text
    return {each["job_id"]: each["replay_id"] for each in reply.json()["data"]}


async def test_a_dead_job_says_why_and_which_workers_it_crashed_on(client, make_worker, submit) -> None:
    job = await submit()
    await submit()
    crash(make_worker, job["id"])
    (dead,) = (await client.get("/v1/jobs?status=dead")).json()["data"]
    assert (dead["id"], dead["status"], dead["attempt"], dead["error"]["code"]) == (job["id"], "dead", 3, "crashed")
    assert "3 workers were lost" in dead["error"]["message"]
    assert [each["attempt"] for each in dead["crashes"]] == [1, 2, 3]
    assert [each["worker"] for each in dead["crashes"]] == ["engine@gpu-1", "engine@gpu-2", "engine@gpu-3"]
    assert len({each["worker_id"] for each in dead["crashes"]}) == 3
    assert [each["tokens"] for each in dead["crashes"]] == [0, 0, 0]
    assert all(datetime.fromisoformat(each["at"]) for each in dead["crashes"])
    assert (await client.get(f"/v1/jobs/{job['id']}")).json()["crashes"] == dead["crashes"]


async def test_a_replay_is_a_new_job_of_the_same_input_and_the_dead_one_stays(
    client, make_worker, submit, redis_client, engine: Engine
) -> None:
    given = {"metadata": {"book": "42"}, "webhook_url": "https://example.com/x", "tier": "high", "temperature": 0.5}
    late = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    job = await submit(**given, seed=7, run_for=60, stop=["x"], start_by=late, finish_by=late)
    crash(make_worker, job["id"])
    reply = await client.post(f"/v1/jobs/{job['id']}/replay")
    new = reply.json()
    assert (reply.status_code, reply.headers["location"]) == (202, new["links"]["self"])
    assert [new[name] for name in SAME] == [job[name] for name in SAME]
    assert (new["status"], new["replay_of"], new["attempt"], new["crashes"]) == ("queued", job["id"], 0, [])
    assert (new["position"], new["start_by"], new["finish_by"]) == (1, None, None)
    assert depths(redis_client, "tiny")[0] >= 1
    with engine.connect() as connection:
        columns = (JobInput.prompt, JobInput.messages, JobInput.prompt_token_ids, JobInput.sampling)
        old_body, new_body = (
            connection.execute(
                JobInput.__table__.select().with_only_columns(*columns).filter_by(job_id=uuid_of(each))
            ).one()
            for each in (job["id"], new["id"])
        )
    assert old_body == new_body
    assert (await client.get(f"/v1/jobs/{job['id']}")).json()["status"] == "dead"


async def test_a_replay_takes_fresh_limits(client, submit) -> None:
    job_id = await ended(client, submit, run_for=60)
    moment = datetime.now(UTC) + timedelta(hours=1)
    fresh = {"start_by": moment.isoformat(), "finish_by": moment.isoformat(), "run_for": 5}
    new = (await client.post(f"/v1/jobs/{job_id}/replay", json=fresh)).json()
    assert datetime.fromisoformat(new["start_by"]) == datetime.fromisoformat(new["finish_by"]) == moment
    assert new["run_for"] == 5
    passed = {"finish_by": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}
    for path, body in ((f"/v1/jobs/{job_id}/replay", passed), (REPLAY, passed | {"status": "cancelled"})):
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "finish_by")
    reply = await client.post(f"/v1/jobs/{job_id}/replay", json={"seed": 1})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unknown_field")


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.EXPIRED])
async def test_any_ended_job_may_be_replayed(client, worker, submit, status: Status) -> None:
    job_id = (await submit())["id"]
    worker.start(job_id)
    worker.say(job_id, " x")
    worker.end(job_id, status)
    assert (await client.post(f"/v1/jobs/{job_id}/replay")).json()["replay_of"] == job_id


async def test_a_job_that_has_not_ended_or_is_somebody_elses_is_not_replayed(client, stranger, worker, submit) -> None:
    job_id = (await submit())["id"]
    refused = await client.post(f"/v1/jobs/{job_id}/replay")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_not_ended")
    assert "queued" in refused.json()["error"]["message"] and refused.headers["x-should-retry"] == "false"
    await client.post(f"/v1/jobs/{job_id}/cancel")
    assert (await stranger.post(f"/v1/jobs/{job_id}/replay")).status_code == 404
    assert await pairs(stranger, {"status": "cancelled"}) == {}


async def test_many_copies_of_a_replay_under_one_key_make_one_job(client, submit) -> None:
    job_id, other = await ended(client, submit), await ended(client, submit)
    path, headers = f"/v1/jobs/{job_id}/replay", {"Idempotency-Key": "k"}
    replies = await asyncio.gather(*(client.post(path, headers=headers) for _ in range(10)))
    assert {reply.status_code for reply in replies} == {202}
    assert len({reply.json()["id"] for reply in replies}) == 1
    for other_body in (
        client.post(path, json={"run_for": 5}, headers=headers),
        client.post(f"/v1/jobs/{other}/replay", headers=headers),
    ):
        reply = await other_body
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert (await client.post(path, headers={"Idempotency-Key": ""})).status_code == 400


async def test_replaying_all_the_dead_twice_runs_each_once(client, make_worker, submit) -> None:
    dead = [(await submit())["id"] for _ in range(2)]
    for job_id in dead:
        crash(make_worker, job_id)
    await ended(client, submit)
    first = await pairs(client)
    assert list(first) == dead and len(set(first.values())) == 2
    assert await pairs(client) == {}
    assert (await client.get("/v1/jobs?status=dead&replayed=false")).json()["data"] == []
    assert len((await client.get("/v1/jobs?status=dead&replayed=true")).json()["data"]) == 2
    again = await pairs(client, {"include_replayed": True})
    assert list(again) == dead and not set(again.values()) & set(first.values())


async def test_filters_choose_what_is_replayed(client, make_worker, submit, engine: Engine) -> None:
    make_worker(model="other")
    low = await ended(client, submit, tier="low", metadata={"n": "1", "m": "x"})
    other = await ended(client, submit, model="other", metadata={"n": "2"})
    old = await ended(client, submit, metadata={"n": "3"})
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == uuid_of(old)).values(ended_at=long_ago))
    chosen = {"status": "cancelled", "include_replayed": True}
    after = (long_ago + timedelta(seconds=1)).isoformat()
    for narrowed, found in (
        ({"tier": "low"}, [low]),
        ({"model": "other"}, [other]),
        ({"metadata": {"n": "1"}}, [low]),
        ({"metadata": {"n": "1", "m": "y"}}, []),
        ({"until": after}, [old]),
        ({"since": after}, [low, other]),
        ({"since": long_ago.isoformat(), "until": long_ago.isoformat()}, []),
        ({}, [low, other, old]),
    ):
        assert list(await pairs(client, chosen | narrowed)) == found, narrowed
    query = {"status": "cancelled", "since": after}
    assert [job["id"] for job in (await client.get("/v1/jobs", params=query)).json()["data"]] == [other, low]
    assert (await client.post(REPLAY, json={"status": "running"})).json()["error"]["param"] == "status"
    assert (await client.post(REPLAY, json={"after": "x"})).json()["error"]["param"] == "after"
    assert (await client.post(REPLAY, json={"limit": 101})).json()["error"]["param"] == "limit"


async def test_pages_of_replays_go_on_where_the_last_one_ended_and_repeat_under_their_key(client, submit) -> None:
    jobs = [await ended(client, submit) for _ in range(5)]
    body: dict[str, Any] = {"status": "cancelled", "limit": 2}
    made: dict[str, str] = {}
    has_more = True
    while has_more:
        reply = await client.post(REPLAY, json=body, headers={"Idempotency-Key": "night"})
        again = await client.post(REPLAY, json=body, headers={"Idempotency-Key": "night"})
        page = reply.json()
        assert again.json() == page
        made |= {each["job_id"]: each["replay_id"] for each in page["data"]}
        body, has_more = body | {"after": page["last_id"]}, page["has_more"]
    assert list(made) == jobs and len(set(made.values())) == 5
    assert len((await client.get("/v1/jobs?status=queued")).json()["data"]) == 5


async def test_calls_at_once_share_the_dead_between_them(client, submit) -> None:
    jobs = [await ended(client, submit) for _ in range(8)]
    calls = await asyncio.gather(*(pairs(client, {"status": "cancelled"}) for _ in range(6)))
    replayed = [job_id for call in calls for job_id in call]
    assert sorted(replayed) == sorted(jobs)


async def test_a_job_that_its_model_can_take_no_more_is_reported_and_passed_over(
    settings, client, make_worker, submit, engine: Engine
) -> None:
    make_worker(model="gone")
    long, short = await ended(client, submit, max_tokens=40), await ended(client, submit, max_tokens=8)
    gone = await ended(client, submit, model="gone")
    with engine.begin() as connection:
        connection.execute(update(Worker).where(Worker.model == "tiny").values(max_model_len=32))
        connection.execute(update(Worker).where(Worker.model == "gone").values(model="elsewhere"))
    async with api_with(settings) as client:
        reply = (await client.post(REPLAY, json={"status": "cancelled"})).json()
        one = await client.post(f"/v1/jobs/{long}/replay")
    told = {each["job_id"]: each for each in reply["data"]}
    assert told[short]["replay_id"] and told[short]["error"] is None
    assert told[long]["replay_id"] is None and told[long]["error"]["code"] == "context_length_exceeded"
    assert "32 in all" in told[long]["error"]["message"]
    assert told[gone]["error"]["code"] == "model_not_found"
    assert (reply["has_more"], reply["last_id"]) == (False, gone)
    assert (one.status_code, one.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_replays_stop_where_the_queue_is_full_and_go_on_from_there(settings, client, submit) -> None:
    jobs = [await ended(client, submit) for _ in range(4)]
    async with api_with(settings, max_queued_jobs=3) as limited:
        page = (await limited.post(REPLAY, json={"status": "cancelled"})).json()
    assert ([each["job_id"] for each in page["data"]], page["has_more"]) == (jobs[:3], True)
    rest = {"status": "cancelled", "after": page["last_id"]}
    async with api_with(settings, max_queued_jobs=3) as limited:
        full = await limited.post(REPLAY, json=rest)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) > 0
    assert list(await pairs(client, rest)) == jobs[3:]


async def test_a_replay_of_a_response_is_read_as_one(client, make_worker) -> None:
    worker = make_worker(chat_template=PLAIN, max_model_len=512, num_blocks=64)
    body = {"model": "tiny", "input": "the mill", "max_output_tokens": 8, "background": True}
    response_id = (await client.post("/v1/responses", json=body)).json()["id"]
    worker.run(response_id.replace("resp_", "job_"), " turns")
    replay = (await client.post(f"/v1/jobs/{response_id.replace('resp_', 'job_')}/replay")).json()["id"]
    worker.run(replay, " stands")
    answer = (await client.get(f"/v1/responses/{replay.replace('job_', 'resp_')}")).json()
    assert (answer["status"], answer["background"], answer["max_output_tokens"]) == ("completed", True, 8)
    assert answer["output"][0]["content"][0]["text"] == " stands"
    items = (await client.get(f"/v1/responses/{answer['id']}/input_items")).json()["data"]
    assert items[0]["content"][0]["text"] == "the mill"
