"""Token streams: fenced by attempt, numbered by token, resumable at every cursor."""

from uuid import UUID

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from db import stream, stream_reads
from db.ids import new_id
from db.stream import Append, Appended, StreamEnded, StreamStale, Token
from tests.db.rows import tokens

ME, OTHER = UUID(int=11), UUID(int=12)


def append(
    client: redis.Redis, job_id: UUID, first: int, count: int, *, attempt: int = 1, worker: UUID = ME
) -> Appended:
    return stream.append_many(client, [Append(job_id, attempt, worker, first, tokens(count, first=first))])[0]


@pytest.fixture
def job_id() -> UUID:
    return new_id()


async def test_reader_finds_every_token_from_every_cursor(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis, job_id: UUID
) -> None:
    assert stream.open(redis_client, job_id, 1, ME).tokens == []
    for first, count in ((0, 1), (1, 3), (4, 2)):
        assert append(redis_client, job_id, first, count) == Appended("ok", first + count)
    for cursor in range(8):
        read = await stream_reads.read(async_redis, job_id, cursor)
        assert read.tokens == tokens(6)[cursor:]
        assert (read.num_tokens, read.is_ended, read.exists) == (6, False, True)


async def test_pages_of_many_streams_come_in_one_round_trip_and_join_to_the_streams(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis
) -> None:
    jobs = [new_id(), new_id()]
    for job_id in jobs:
        for attempt, first, count in ((1, 0, 1), (2, 1, 3), (3, 4, 2)):
            stream.open(redis_client, job_id, attempt, ME)
            append(redis_client, job_id, first, count, attempt=attempt)
    joined: dict[UUID, list[Token]] = {job_id: [] for job_id in jobs}
    while positions := [(job_id, len(found)) for job_id, found in joined.items() if len(found) < 6]:
        pages = await stream_reads.read_many(async_redis, [*positions, positions[0]], limit=1)
        assert pages[-1] == pages[0] and 0 < len(pages[0].tokens) <= 3 and pages[0].num_tokens == 6
        for (job_id, _), page in zip(positions, pages[:-1], strict=True):
            joined[job_id] += page.tokens
    assert joined == dict.fromkeys(jobs, tokens(6))


async def test_stream_that_was_never_opened_does_not_exist(async_redis: redis.asyncio.Redis, job_id: UUID) -> None:
    assert not (await stream_reads.read(async_redis, job_id, 0)).exists


def test_texts_and_logprobs_survive_as_they_were(redis_client: redis.Redis, job_id: UUID) -> None:
    delivered = [
        Token(1, 'ü"\n\u2028😀'),
        Token(2, ""),
        Token(3, "x", {"logprob": -0.5, "top": [[3, -0.5]]}),
        Token(4, "y", None, 2),
    ]
    stream.open(redis_client, job_id, 1, ME)
    stream.append_many(redis_client, [Append(job_id, 1, ME, 0, delivered)])
    assert stream.open(redis_client, job_id, 2, OTHER).tokens == delivered


def test_nul_reads_the_same_from_the_stream_as_from_postgres(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 1, ME)
    stream.append_many(redis_client, [Append(job_id, 1, ME, 0, [Token(1, "a\0b")])])
    assert stream.open(redis_client, job_id, 1, ME).tokens == [Token(1, "a\ufffdb")]


def test_new_attempt_takes_the_pen_and_the_old_one_is_told(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    assert stream.open(redis_client, job_id, 2, OTHER).tokens == tokens(2)
    assert append(redis_client, job_id, 2, 1).status == "stale"
    assert append(redis_client, job_id, 2, 1, attempt=2, worker=OTHER) == Appended("ok", 3)
    with pytest.raises(StreamStale):
        stream.open(redis_client, job_id, 1, ME)


def test_writer_that_is_behind_is_told_where_to_go_on(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    assert append(redis_client, job_id, 5, 1) == Appended("behind", 2)
    assert append(redis_client, job_id, 1, 3) == Appended("behind", 2)


def test_append_repeated_after_a_lost_answer_is_written_once(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 1, ME)
    assert append(redis_client, job_id, 0, 2) == append(redis_client, job_id, 0, 2) == Appended("ok", 2)
    assert stream.open(redis_client, job_id, 1, ME).tokens == tokens(2)


def test_lost_stream_is_written_again_from_its_start(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    redis_client.flushall()
    assert append(redis_client, job_id, 2, 1).status == "missing"
    assert append(redis_client, job_id, 0, 3) == Appended("ok", 3)


def test_old_attempt_cannot_keep_a_lost_stream_from_the_new_one(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.open(redis_client, job_id, 2, OTHER)
    append(redis_client, job_id, 0, 4, attempt=2, worker=OTHER)
    redis_client.flushall()
    append(redis_client, job_id, 0, 2)  # of attempt 1, which does not know yet
    assert append(redis_client, job_id, 4, 1, attempt=2, worker=OTHER).status == "missing"
    assert append(redis_client, job_id, 0, 5, attempt=2, worker=OTHER) == Appended("ok", 5)
    assert append(redis_client, job_id, 2, 1).status == "stale"


async def test_nothing_is_written_after_the_end(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis, job_id: UUID
) -> None:
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    stream.end(redis_client, job_id, 2)
    stream.end(redis_client, job_id, 9)
    assert append(redis_client, job_id, 2, 1).status == "stale"
    with pytest.raises(StreamEnded):
        stream.open(redis_client, job_id, 2, OTHER)
    read = await stream_reads.read(async_redis, job_id, 1)
    assert (read.tokens, read.num_tokens, read.is_ended) == (tokens(1, first=1), 2, True)
    assert (await stream_reads.read(async_redis, job_id, 2)).is_ended
    assert 0 < redis_client.ttl(stream.key_of(job_id)) <= 300


async def test_end_may_count_tokens_the_stream_does_not_have_or_has_too_many_of(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis
) -> None:
    for num_tokens in (1, 5):
        job_id = new_id()
        stream.open(redis_client, job_id, 1, ME)
        append(redis_client, job_id, 0, 3)
        stream.end(redis_client, job_id, num_tokens)
        read = await stream_reads.read(async_redis, job_id, 0)
        assert (len(read.tokens), read.num_tokens, read.is_ended) == (min(3, num_tokens), num_tokens, True)


def test_end_of_a_job_that_delivered_nothing_leaves_no_key(redis_client: redis.Redis, job_id: UUID) -> None:
    stream.end(redis_client, job_id, 0)
    assert redis_client.keys() == []


async def test_fenced_writer_adds_nothing_until_it_opens_again(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis, job_id: UUID
) -> None:
    assert await stream.fence_async(async_redis, job_id) is None
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    assert stream.fence(redis_client, job_id) == tokens(2)
    assert append(redis_client, job_id, 2, 1).status == "stale"
    assert stream.open(redis_client, job_id, 1, ME).tokens == tokens(2)
    assert append(redis_client, job_id, 2, 1) == Appended("ok", 3)


def test_many_streams_are_written_in_one_call_each_by_its_own_fence(redis_client: redis.Redis) -> None:
    ids = [new_id() for _ in range(3)]
    for job_id in ids:
        stream.open(redis_client, job_id, 1, ME)
    stream.open(redis_client, ids[1], 2, OTHER)
    redis_client.script_flush()  # as after a restart
    results = stream.append_many(redis_client, [Append(job_id, 1, ME, 0, tokens(2)) for job_id in ids])
    assert [result.status for result in results] == ["ok", "stale", "ok"]
    standings = stream.standings(redis_client, [*ids, new_id()])
    assert {job_id: standing.num_tokens for job_id, standing in standings.items()} == {ids[0]: 2, ids[1]: 0, ids[2]: 2}
    assert stream.append_many(redis_client, []) == [] and stream.standings(redis_client, []) == {}


async def test_many_streams_are_opened_and_ended_in_one_call_each(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis
) -> None:
    fresh, resumed, overtaken, over = (new_id() for _ in range(4))
    for job_id in (resumed, overtaken, over):
        stream.open(redis_client, job_id, 1, OTHER)
        append(redis_client, job_id, 0, 2, worker=OTHER)
    stream.end_many(redis_client, {over: 2})
    redis_client.script_flush()  # as after a restart
    attempts = {fresh: 1, resumed: 2, overtaken: 0, over: 2}
    opened = stream.open_many(redis_client, attempts, ME)
    assert {job_id: each.tokens for job_id, each in opened.items()} == {fresh: [], resumed: tokens(2)}
    stream.end_many(redis_client, {fresh: 0, resumed: 2})
    assert [(await stream_reads.read(async_redis, job_id, 0)).is_ended for job_id in attempts] == [
        True,
        True,
        False,
        True,
    ]
    assert stream.open_many(redis_client, {}, ME) == {}


async def test_every_append_and_the_end_are_announced(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis, job_id: UUID
) -> None:
    async with async_redis.pubsub() as subscription:
        await subscription.subscribe(stream.channel_of(job_id))
        await subscription.get_message(timeout=5)
        stream.open(redis_client, job_id, 1, ME)
        append(redis_client, job_id, 0, 2)
        stream.end(redis_client, job_id, 2)
        news = [await subscription.get_message(ignore_subscribe_messages=True, timeout=5) for _ in range(3)]
    opened, grown, ended = (stream.News.of(message["data"]) for message in news)
    assert (opened, ended) == (stream.News(0), stream.News(0, is_end=True))
    assert (grown.num_tokens, stream.tokens_in([grown.payload])) == (2, tokens(2))


async def test_news_tell_who_has_all_before_them_what_a_read_would(
    redis_client: redis.Redis, async_redis: redis.asyncio.Redis, job_id: UUID
) -> None:
    stream.open(redis_client, job_id, 1, ME)
    append(redis_client, job_id, 0, 2)
    async with async_redis.pubsub() as subscription:
        await subscription.subscribe(stream.channel_of(job_id))
        await subscription.get_message(timeout=5)
        append(redis_client, job_id, 2, 3)
        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=5)
    news = stream.News.of(message["data"])
    for index in (2, 3, 4):
        assert stream_reads.read_news(news, index) == await stream_reads.read(async_redis, job_id, index)
    for index in (0, 1, 5, 6):
        assert stream_reads.read_news(news, index) is None
    assert stream_reads.read_news(stream.News(2), 0) is None, "an opening brings no tokens"


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["crash", "repeat", "flush"])), max_size=12))
def test_whatever_happens_to_writers_the_stream_is_contiguous(
    redis_client: redis.Redis, events: list[int | str]
) -> None:
    job_id, attempt, last = new_id(), 1, (0, 0)
    held = len(stream.open(redis_client, job_id, attempt, ME).tokens)
    for event in events:
        if event == "crash":
            attempt += 1
            held = len(stream.open(redis_client, job_id, attempt, ME).tokens)
            last = (0, 0)
        elif event == "flush":
            redis_client.delete(stream.key_of(job_id))
        else:
            last = (held, event) if isinstance(event, int) else last
            if append(redis_client, job_id, *last, attempt=attempt).status == "missing":
                append(redis_client, job_id, 0, sum(last), attempt=attempt)
            held = max(held, sum(last))
        attempt += 1
        found = stream.open(redis_client, job_id, attempt, ME).tokens
        assert found == tokens(len(found))
        held = len(found)
