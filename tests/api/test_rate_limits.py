"""Requests and tokens a minute of a key: what is refused, and what every reply to a submit tells."""

import asyncio
import logging

import httpx
import pytest

from api.rate_limits import Allowance, RateLimiter, duration
from db.ids import new_id
from db.key_limits import KeyLimits
from db.session import make_async_redis
from db.settings import Settings
from tests.api.limited_keys import api_of, make_key

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}  # ten tokens
RATES = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


def rates(reply: httpx.Response, unit: str) -> tuple[str | None, ...]:
    """Limit, what is left, and when it is full again."""
    return tuple(reply.headers.get(f"{name}-{unit}") for name in RATES)


async def test_requests_beyond_a_minutes_are_refused_with_the_time_to_come_back(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, requests_per_minute=2)) as client:
        first, second, third = [await client.post("/v1/jobs", json=BODY) for _ in range(3)]
        listed = await client.get("/v1/jobs")
    assert [reply.status_code for reply in (first, second, third)] == [202, 202, 429]
    assert rates(first, "requests") == ("2", "1", "30s")
    assert rates(second, "requests")[:2] == rates(third, "requests")[:2] == ("2", "0")
    assert rates(first, "tokens") == (None, None, None), "they are not limited"
    error = third.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "2 requests a minute" in error["message"] and "Nothing was queued" in error["message"]
    assert 20_000 < int(third.headers["retry-after-ms"]) <= 30_000 and int(third.headers["retry-after"]) <= 30
    assert len(listed.json()["data"]) == 2
    assert "x-ratelimit-limit-requests" not in listed.headers, "looking is free"


async def test_tokens_beyond_a_minutes_are_refused_and_a_smaller_job_may_fit(settings, engine, worker) -> None:
    two = BODY | {"prompt": [1], "max_tokens": 1}
    async with api_of(settings, make_key(engine, tokens_per_minute=5)) as client:
        first = await client.post("/v1/jobs", json=two)
        thrice = await client.post("/v1/jobs", json=two | {"n": 3})
        small = await client.post("/v1/jobs", json=two | {"max_tokens": 2})
    assert rates(first, "tokens") == ("5", "3", "24s")
    assert thrice.status_code == 429, "four, as each output counts"
    assert "3 are left, and this job has 4" in thrice.json()["error"]["message"]
    assert 0 < int(thrice.headers["retry-after-ms"]) <= 12_000
    assert (small.status_code, rates(small, "tokens")[1]) == (202, "0")


async def test_a_job_that_no_waiting_helps_is_not_to_be_sent_again(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, tokens_per_minute=9)) as client:
        reply = await client.post("/v1/jobs", json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "request_too_large")
    assert reply.headers["x-should-retry"] == "false" and "retry-after" not in reply.headers
    assert rates(reply, "tokens")[:2] == ("9", "9")


async def test_the_settings_limit_every_key_that_has_no_limit_of_its_own(settings, engine, worker) -> None:
    for key, accepted in ((make_key(engine), 1), (make_key(engine, requests_per_minute=0), 3)):
        async with api_of(settings, key, requests_per_minute=1) as client:
            replies = [await client.post("/v1/jobs", json=BODY) for _ in range(3)]
        assert sum(reply.status_code == 202 for reply in replies) == accepted


async def test_one_keys_rate_is_not_anothers(settings, engine, worker) -> None:
    for _ in range(2):
        async with api_of(settings, make_key(engine, requests_per_minute=1)) as client:
            assert (await client.post("/v1/jobs", json=BODY)).status_code == 202


async def test_a_submit_that_is_refused_for_what_it_says_counts_as_a_request(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine, requests_per_minute=4, tokens_per_minute=99)) as client:
        wrong = await client.post("/v1/jobs", json=BODY | {"max_tokens": 0})
        no_json = await client.post("/v1/completions", content=b"{")
        long = await client.post("/v1/jobs", content=b"x" * (17 << 20))
        looking = await client.get("/v1/jobs/job_1")
    assert [reply.status_code for reply in (wrong, no_json, long, looking)] == [400, 400, 413, 404]
    assert [rates(reply, "requests")[1] for reply in (wrong, no_json, long, looking)] == ["3", "2", "1", None]
    assert rates(wrong, "tokens")[:2] == ("99", "99")


async def test_a_repeat_is_answered_though_the_rate_is_used_up(settings, engine, worker) -> None:
    headers = {"Idempotency-Key": "k"}
    async with api_of(settings, make_key(engine, requests_per_minute=1)) as client:
        first, again = [await client.post("/v1/jobs", json=BODY, headers=headers) for _ in range(2)]
        other = await client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k2"})
    assert (first.status_code, again.status_code, other.status_code) == (202, 202, 429)
    assert first.json()["id"] == again.json()["id"]
    assert rates(again, "requests")[:2] == ("1", "0")


async def test_replays_take_from_the_rate_of_tokens_and_end_the_page_where_it_ends(settings, engine, worker) -> None:
    async with api_of(settings, make_key(engine)) as client:
        for _ in range(3):
            job = (await client.post("/v1/jobs", json=BODY)).json()
            await client.post(f"/v1/jobs/{job['id']}/cancel")
    ended = {"status": "cancelled"}
    async with api_of(settings, make_key(engine, requests_per_minute=9, tokens_per_minute=25)) as client:
        page = await client.post("/v1/jobs/replay", json=ended)
        refused = await client.post("/v1/jobs/replay", json=ended)
    assert (len(page.json()["data"]), page.json()["has_more"]) == (2, True)
    assert (rates(page, "requests")[1], rates(page, "tokens")[1]) == ("8", "5")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_a_key_without_limits_costs_no_look_at_redis_and_is_told_nothing(
    client, worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("db.rate_limits.take", fail)
    reply = await client.post("/v1/jobs", json=BODY)
    assert reply.status_code == 202
    assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


async def test_a_key_with_limits_costs_one_look_at_redis(settings, engine, worker, redis_client) -> None:
    async with api_of(settings, make_key(engine, requests_per_minute=9, tokens_per_minute=99)) as client:
        await client.post("/v1/jobs", json=BODY)  # which also loads the script
        redis_client.config_resetstat()
        await client.post("/v1/jobs", json=BODY)
    calls = redis_client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] == 1


async def test_while_redis_is_away_everybody_is_let_in_and_the_log_says_so(
    settings, engine, worker, caplog: pytest.LogCaptureFixture
) -> None:
    key = make_key(engine, requests_per_minute=1)
    with caplog.at_level(logging.WARNING, "api.rate_limits"):
        async with api_of(settings, key, redis_url="redis://127.0.0.1:1/0") as client:
            replies = [await client.post("/v1/jobs", json=BODY) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [202, 202, 202]
    assert rates(replies[0], "requests") == (None, None, None)
    assert "rates of keys are not limited" in {record.message for record in caplog.records}


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0, "0s"), (1, "1ms"), (120_000, "120ms"), (999_001, "1s"), (8_640_000, "8.64s"), (60_000_000, "1m0s")],
)
def test_a_time_is_spelled_as_openai_does(microseconds: int, text: str) -> None:
    assert duration(microseconds) == text


async def test_a_redis_that_does_not_answer_is_not_waited_for_and_not_asked_again_at_once(monkeypatch) -> None:
    asked = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writers.append(writer)  # and no word

    writers: list[asyncio.StreamWriter] = []
    monkeypatch.setattr("api.rate_limits.PATIENCE_SECONDS", 0.05)
    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        limiter = RateLimiter(make_async_redis(Settings(redis_url=f"redis://127.0.0.1:{port}/0")))
        allowance = Allowance(limiter, new_id(), KeyLimits(requests_per_minute=1))
        assert [await allowance.let_in([1]) for _ in range(3)] == [1, 1, 1]
        assert await allowance.headers() == {}
        for writer in writers:
            writer.close()
    assert asked == 1
