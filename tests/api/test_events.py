"""GET /v1/jobs/{id}/events: contiguous from every cursor, live and from the past, whatever is lost meanwhile."""

import asyncio
from functools import partial

import httpx
import pytest
import redis

from api.stream import StreamHub
from db.models import Status
from db.stream import end
from tests.api.hand_worker import HandWorker, uuid_of
from tests.api.serving import api_with
from tests.api.sse import Event, events
from tests.servers import Servers


async def read_all(client: httpx.AsyncClient, job_id: str, **headers: str) -> list[Event]:
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event async for event in events(response)]


async def test_a_live_reader_gets_each_event_as_it_happens(client, worker, submit) -> None:
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        assert (await anext(stream)).name == "job.queued"
        worker.start(job["id"])
        assert (await anext(stream)).name == "job.started"
        for index, text in enumerate((" a", "", " b")):
            worker.say(job["id"], text)
            token = await anext(stream)
            assert (token.name, token.number) == ("job.token", 2 + index)
            assert token.data == {"index": index, "choice": 0, "token_id": 10 + index, "text": text, "logprobs": None}
        worker.end(job["id"])
        end = await anext(stream)
        assert (end.name, end.number, end.data["output"]["text"]) == ("job.succeeded", 5, " a b")
        assert [event async for event in stream] == [], "the stream closes after the end"


async def test_a_live_reader_that_keeps_up_has_its_tokens_with_the_news(client, worker, submit, redis_client) -> None:
    def num_reads() -> int:
        calls: int = redis_client.info("commandstats")["cmdstat_xrange"]["calls"]
        return calls

    job, texts = await submit(), [f" {number}" for number in range(20)]
    worker.start(job["id"])
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        while (await anext(stream)).name != "job.started":
            pass
        before, told = num_reads(), []
        for text in texts:
            worker.say(job["id"], text)
            told.append((await anext(stream)).data["text"])
        assert told == texts
        assert num_reads() - before < len(texts) / 2, "each token was read"
        worker.end(job["id"])


async def test_every_cursor_resumes_without_gap_or_repeat_from_redis_and_from_postgres(client, worker, submit) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " one", "", " two")
    worker.say(job["id"], " three")
    worker.end(job["id"])
    live = await read_all(client, job["id"])
    assert [event.number for event in live] == list(range(7))
    worker.forget_stream(job["id"])
    assert await read_all(client, job["id"]) == live
    for cursor in range(6):
        assert await read_all(client, job["id"], **{"Last-Event-ID": str(cursor)}) == live[cursor + 1 :]
        by_query = await client.get(f"/v1/jobs/{job['id']}/events?after={cursor}")
        assert [event async for event in events(by_query)] == live[cursor + 1 :]


async def test_a_cursor_at_the_end_of_an_ended_job_has_nothing_to_come(client, worker, submit) -> None:
    job = await submit()
    worker.run(job["id"], " x")
    reply = await client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "3"})
    assert (reply.status_code, reply.content) == (204, b"")


async def test_a_cursor_that_is_no_number_is_refused(client, submit) -> None:
    job = await submit()
    for cursor in ("-1", "x", "1e3", "9" * 30):
        by_header = await client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": cursor})
        by_query = await client.get(f"/v1/jobs/{job['id']}/events?after={cursor}")
        for reply, param in ((by_header, "Last-Event-ID"), (by_query, "after")):
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_no_character_of_a_text_breaks_a_line_of_its_event(client, worker, submit) -> None:
    job = await submit()
    text = " a\u2028b\u2029c\u0085d\x0b\x0c\x1ce\r\nf é"
    worker.run(job["id"], text)
    raw = (await client.get(f"/v1/jobs/{job['id']}/events")).content
    assert raw.isascii()
    seen = await read_all(client, job["id"])  # `httpx` cuts lines wherever Unicode says so
    assert (seen[2].data["text"], seen[3].data["output"]["text"]) == (text, text)


async def test_a_reader_ahead_of_a_live_job_waits_for_its_token(client, worker, submit) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " a")
    reading = asyncio.create_task(read_all(client, job["id"], **{"Last-Event-ID": "3"}))
    worker.say(job["id"], " b", " c")
    worker.end(job["id"])
    assert [(event.number, event.data.get("text")) for event in await reading] == [(4, " c"), (5, None)]


async def test_a_job_that_never_started_has_two_events(client, worker, submit) -> None:
    job = await submit()
    reading = asyncio.create_task(read_all(client, job["id"]))
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    seen = await reading
    assert [(event.name, event.number) for event in seen] == [("job.queued", 0), ("job.cancelled", 1)]
    assert await read_all(client, job["id"]) == seen


async def test_a_start_that_was_told_counts_though_the_job_was_handed_back_before_it_wrote(
    client, worker, submit
) -> None:
    """A worker that drains takes `started_at` back with it; the number of what comes next stays what it was."""
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        worker.start(job["id"])
        seen = [await anext(stream), await anext(stream)]
        worker.hand_back(job["id"])
        await client.post(f"/v1/jobs/{job['id']}/cancel")
        seen += [event async for event in stream]
    told = [(event.name, event.number) for event in seen]
    assert told == [("job.queued", 0), ("job.started", 1), ("job.cancelled", 2)]
    later = await read_all(client, job["id"])
    assert [(event.name, event.number) for event in later] == told


async def test_without_token_events_only_the_lifecycle_is_told(client, worker, submit) -> None:
    job = await submit(stream=False)
    reading = asyncio.create_task(read_all(client, job["id"]))
    worker.run(job["id"], " a", " b")
    seen = await reading
    assert [(event.name, event.number) for event in seen] == [
        ("job.queued", 0),
        ("job.started", 1),
        ("job.succeeded", 2),
    ]
    assert seen[-1].data["output"]["text"] == " a b"


async def test_a_failure_after_tokens_is_the_last_event(client, worker, submit) -> None:
    job = await submit()
    worker.start(job["id"])
    worker.say(job["id"], " a")
    worker.end(job["id"], Status.FAILED, error_code="nan_logits", error_message="no number")
    assert [event.name for event in await read_all(client, job["id"])][-2:] == ["job.token", "job.failed"]


async def test_a_reader_survives_the_loss_of_redis_data_in_mid_stream(client, worker, submit, redis_client) -> None:
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        worker.start(job["id"])
        worker.say(job["id"], " a")
        assert [(await anext(stream)).number for _ in range(3)] == [0, 1, 2]
        redis_client.flushall()
        worker.delivered[next(iter(worker.delivered))].clear()
        worker.say(job["id"], " a", " b")  # the worker writes the stream again from memory
        worker.end(job["id"])
        rest = [event async for event in stream]
    assert [(event.number, event.data.get("text")) for event in rest] == [(3, " b"), (4, None)]


async def test_an_end_that_redis_never_told_is_found_in_the_row(
    settings, worker, submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit()
    monkeypatch.setattr("api.services.StreamHub", partial(StreamHub, silent_seconds=0.1))
    async with api_with(settings) as client, client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        worker.start(job["id"])
        worker.say(job["id"], " a")
        assert [(await anext(stream)).number for _ in range(3)] == [0, 1, 2]
        worker.commit_end(job["id"])
        rest = [event async for event in stream]
    assert [(event.name, event.number) for event in rest] == [("job.succeeded", 3)]


async def test_readers_that_leave_leave_no_subscription_behind(client, submit, redis_client) -> None:
    job = await submit()
    for _ in range(3):
        async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
            await anext(events(response))
            await channels(redis_client, [b"stream:none", job["id"].replace("job_", "stream:").encode()])
    await channels(redis_client, [b"stream:none"])


async def channels(redis_client: redis.Redis, names: list[bytes]) -> None:
    """Return once exactly these channels have subscribers; the test's timeout is the limit."""
    while sorted(redis_client.pubsub_channels("stream:*")) != sorted(names):
        await asyncio.sleep(0.01)


async def test_a_stream_goes_on_while_postgres_is_away(settings, worker, submit, servers: Servers, monkeypatch) -> None:
    monkeypatch.setattr("api.follow.RETRY_SECONDS", 0.1)
    job = await submit()
    async with api_with(settings) as client, client.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
        stream = events(response)
        worker.start(job["id"])
        worker.say(job["id"], " a")
        assert [(await anext(stream)).number for _ in range(3)] == [0, 1, 2]
        servers.postgres.stop()
        try:
            worker.say(job["id"], " b")
            assert (await anext(stream)).data["text"] == " b"
            stream_end(worker, job["id"])
        finally:
            servers.postgres.start()  # on this thread: the server dies with the one that started it
        worker.commit_end(job["id"])
        rest = [event async for event in stream]
    assert [(event.name, event.number) for event in rest] == [("job.succeeded", 4)]


def stream_end(worker: HandWorker, public_id: str) -> None:
    """The end reaches Redis, and so the reader looks for the row, which is away."""
    job_id = uuid_of(public_id)
    end(worker.redis, job_id, len(worker.delivered[job_id]))
