"""Many readers of token streams, and slow ones: what they cost the API process and the stores, and what they see."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial

import pytest
import redis
from sqlalchemy import Engine, text

from api.client.event_lines import Event
from api.stream import StreamHub
from db import job_queries, stream
from tests.api.follower import Follower, follow
from tests.api.hand_worker import HandWorker, uuid_of
from tests.api.serving import serve

NUM_JOBS = 20
LONG_TEXT = "x" * 2000
NUM_LONG = 8000  # tokens of that text: several times what the kernel holds for a client that does not read

Followers = Callable[..., Awaitable[list[Follower]]]


@pytest.fixture
async def followers() -> AsyncIterator[Followers]:
    """Make a number of followers of each of some jobs, each with its first event; they leave at the end."""
    async with AsyncExitStack() as stack:

        async def make(url: str, jobs: Collection[str], *, num_each: int) -> list[Follower]:
            made = [await stack.enter_async_context(follow(url, job)) for job in jobs for _ in range(num_each)]
            assert {(await each.next()).type for each in made} == {"job.queued"}
            return made

        yield make


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """How often each of these functions of `job_queries` is called from now on."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        function = getattr(job_queries, name)

        async def call(*args: object, **options: object) -> object:
            calls[name] += 1
            return await function(*args, **options)

        monkeypatch.setattr(job_queries, name, call)

    for name in names:
        counted(name)
    return calls


async def until(is_so: Callable[[], bool]) -> None:
    """Return once it is so; the test's timeout is the limit."""
    while not is_so():
        await asyncio.sleep(0.01)


async def test_any_number_of_readers_share_one_subscription_and_one_reading_connection(
    url: str, worker: HandWorker, submit, followers: Followers, redis_client: redis.Redis
) -> None:
    jobs = [(await submit())["id"] for _ in range(NUM_JOBS)]
    before = len(redis_client.client_list(_type="normal"))
    made = await followers(url, jobs, num_each=10)
    for job in jobs:
        worker.run(job, *(f" {i}" for i in range(5)))
    seen = await asyncio.gather(*(each.rest() for each in made))
    assert all([event.number for event in each] == list(range(1, 8)) for each in seen)
    assert len(redis_client.client_list(_type="pubsub")) == 1
    assert len(redis_client.client_list(_type="normal")) <= before + 1


@pytest.mark.parametrize("num_each", [1, 10])
async def test_readers_of_waiting_jobs_cost_one_statement_a_round_for_all_of_them_together(
    settings, submit, followers: Followers, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, num_each: int
) -> None:
    jobs = [(await submit())["id"] for _ in range(NUM_JOBS)]
    monkeypatch.setattr("api.services.StreamHub", partial(StreamHub, silent_seconds=0.05))
    async with serve(settings) as url:
        await followers(url, jobs, num_each=num_each)
        await until(lambda: len(redis_client.pubsub_channels("stream:*")) == NUM_JOBS + 1)  # and the hub's own
        calls = count_calls(monkeypatch, "statuses", "get")
        await until(lambda: calls["statuses"] >= 2)  # the first rounds, which confirm what the readers know
        calls.clear()
        before = num_commands(redis_client)
        await until(lambda: calls["statuses"] >= 10)
        assert calls["get"] == 0, "no reader looks at its row while nothing has changed"
        assert num_commands(redis_client) - before <= 5, "a PING now and then, and our own look"


def num_commands(client: redis.Redis) -> int:
    return sum(stat["calls"] for stat in client.info("commandstats").values())


async def test_a_client_that_does_not_read_costs_little_and_holds_up_nobody_and_misses_nothing(
    url: str, worker: HandWorker, submit, redis_client: redis.Redis
) -> None:
    job = (await submit())["id"]
    num_bytes = say_much(worker, job)
    before = num_sent(redis_client)
    async with follow(url, job) as slow, follow(url, job) as cut_off:
        begun = await take(cut_off, 300)  # then it stops, and so does `slow` before its first event
        async with follow(url, job) as quick:
            whole = await take(quick, NUM_LONG + 2)
            assert num_sent(redis_client) - before < 2 * num_bytes, "little is read for who does not read"
            worker.end(job)
            whole += await quick.rest()
        assert [event.number for event in whole] == list(range(NUM_LONG + 3))
        assert await slow.rest() == whole
    async with follow(url, job, cursor=begun[-1].number) as back:
        assert begun + await back.rest() == whole


def say_much(worker: HandWorker, job: str) -> int:
    """The job is running and has all of its tokens; how many bytes they have at least."""
    worker.start(job)
    for _ in range(NUM_LONG // 8):
        worker.say(job, *[LONG_TEXT] * 8)
    return NUM_LONG * len(LONG_TEXT)


def num_sent(client: redis.Redis) -> int:
    """How many bytes Redis has sent to whomever."""
    sent: int = client.info("stats")["total_net_output_bytes"]
    return sent


async def test_pages_join_to_one_stream_from_every_cursor_while_running_and_after_the_end_and_from_postgres(
    settings, worker: HandWorker, submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.services.PAGE_ENTRIES", 2)
    monkeypatch.setattr("api.follow.PAGE_TOKENS", 3)
    job = (await submit())["id"]
    worker.start(job)
    for entry in ("a", "bcdefgh", "i", "jk", "l", "m"):
        worker.say(job, *entry)  # a token each letter, with the numbers 2 to 14
    async with serve(settings) as url:
        async with AsyncExitStack() as stack:
            live = [await stack.enter_async_context(follow(url, job, cursor=cursor)) for cursor in range(-1, 14)]
            begun = await asyncio.gather(*(take(each, 15 - i) for i, each in enumerate(live)))
            worker.end(job)
            seen = [first + await each.rest() for first, each in zip(begun, live, strict=True)]
        assert [event.number for event in seen[0]] == list(range(16))
        for forget in (lambda: None, partial(worker.forget_stream, job)):
            forget()
            for cursor, events in enumerate(seen, start=-1):
                assert events == seen[0][cursor + 1 :]
                async with follow(url, job, cursor=cursor) as late:
                    assert await late.rest() == events


async def take(follower: Follower, num_events: int) -> list[Event]:
    return [await follower.next() for _ in range(num_events)]


async def test_a_job_whose_only_client_drops_at_the_first_event_runs_to_its_end(
    url: str, worker: HandWorker, submit, redis_client: redis.Redis
) -> None:
    job = (await submit())["id"]
    async with follow(url, job) as follower:
        assert (await follower.next()).type == "job.queued"
    await until_left(redis_client)
    worker.run(job, " a", " b")
    async with follow(url, job, cursor=0) as back:
        assert [event.type for event in await back.rest()] == ["job.started", "job.token", "job.token", "job.succeeded"]


async def test_clients_that_leave_while_their_job_is_looked_at_take_no_connection_along(
    url: str, engine: Engine, worker: HandWorker, submit, followers: Followers, redis_client: redis.Redis
) -> None:
    job = (await submit())["id"]
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await (await stack.enter_async_context(follow(url, job))).next()
        with engine.begin() as holding:
            holding.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
            stream.open(redis_client, uuid_of(job), 1, worker.card.id)  # so that its readers look at the row
            await until(lambda: len(backends(engine, "wait_event_type = 'Lock'")) >= 3)  # the hub may look as well
            looking = backends(engine, "wait_event_type = 'Lock'")
            await stack.aclose()
            await until_left(redis_client)
    await until(lambda: not backends(engine, "state = 'active' AND pid <> pg_backend_pid()"))
    assert looking <= backends(engine, "state = 'idle'")


async def until_left(client: redis.Redis) -> None:
    """The API knows that its readers have gone."""
    await until(lambda: client.pubsub_channels("stream:*") == [b"stream:none"])


def backends(engine: Engine, condition: str) -> set[int]:
    """The processes of PostgreSQL that serve a client."""
    statement = f"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND {condition}"
    with engine.connect() as connection:
        return set(connection.scalars(text(statement)))
