"""The rates of a key: a minute's worth at once, then as fast as it comes back, whatever the clocks do."""

import pytest
import redis.asyncio

from db.ids import new_id
from db.key_limits import KeyLimits
from db.rate_limits import Taken, take

START = 1_800_000_000.0


class Key:
    """A key with these limits."""

    def __init__(self, client: redis.asyncio.Redis, **limits: int) -> None:
        self.client = client
        self.limits = KeyLimits(**limits)
        self.id = new_id()

    async def take(self, *tokens: int, at: float = 0.0, num_requests: int = 1) -> Taken:
        return await take(self.client, self.id, self.limits, tokens or [0], num_requests=num_requests, now=START + at)


async def test_a_minutes_requests_may_come_at_once_and_then_one_as_often_as_it_comes_back(async_redis) -> None:
    key = Key(async_redis, requests_per_minute=6)
    taken = [await key.take() for _ in range(7)]
    assert [each.num_jobs for each in taken] == [1, 1, 1, 1, 1, 1, 0]
    assert [each.requests.remaining for each in taken] == [5, 4, 3, 2, 1, 0, 0]
    assert taken[6].requests.room_in(1) == 10.0 and taken[6].requests.full_in == 60_000_000
    assert (await key.take(at=9.9)).num_jobs == 0
    assert (await key.take(at=10)).num_jobs == 1
    assert (await key.take(at=10)).num_jobs == 0


@pytest.mark.parametrize("limit", [1, 7, 999, 600_007])
async def test_a_limit_that_does_not_divide_a_minute_is_held_exactly(async_redis, limit: int) -> None:
    key = Key(async_redis, tokens_per_minute=limit)
    parts = [limit // 3, limit // 3, limit - 2 * (limit // 3)]
    taken = await key.take(*parts)
    assert (taken.num_jobs, taken.tokens.remaining) == (3, 0)
    assert (await key.take(1)).num_jobs == 0


async def test_of_several_jobs_the_first_that_fit_are_let_in(async_redis) -> None:
    key = Key(async_redis, tokens_per_minute=100)
    taken = await key.take(40, 40, 40, 1)
    assert (taken.num_jobs, taken.tokens.remaining, taken.tokens.room_in(40)) == (2, 20, 12.0)
    assert (await key.take(20)).num_jobs == 1


async def test_who_is_refused_by_one_rate_takes_nothing_of_the_other(async_redis) -> None:
    key = Key(async_redis, requests_per_minute=2, tokens_per_minute=100)
    refused = await key.take(101)
    assert (refused.num_jobs, refused.requests.remaining, refused.tokens.remaining) == (0, 2, 100)
    await key.take(10)
    await key.take(10)
    refused = await key.take(10)
    assert (refused.num_jobs, refused.tokens.remaining) == (0, 80)


async def test_what_is_not_limited_is_not_counted_and_the_rest_is_gone_when_it_is_full_again(async_redis) -> None:
    key = Key(async_redis, requests_per_minute=60)
    taken = await key.take(10**9)
    assert (taken.num_jobs, taken.tokens.limit, taken.tokens.room_in(10**9)) == (1, 0, 0.0)
    assert await async_redis.keys("*") == [f"rate:{key.id.hex}:requests".encode()]
    assert 0 < await async_redis.pttl(f"rate:{key.id.hex}:requests") <= 1000


async def test_a_request_that_was_counted_takes_tokens_alone(async_redis) -> None:
    key = Key(async_redis, requests_per_minute=1, tokens_per_minute=100)
    assert (await key.take(10)).num_jobs == 1
    assert (await key.take(10, num_requests=0)).num_jobs == 1


async def test_nobody_waits_longer_than_a_minute_when_the_clock_is_set_back(async_redis) -> None:
    key = Key(async_redis, requests_per_minute=1)
    await key.take(at=3600)
    assert (await key.take()).requests.full_in == 60_000_000


async def test_the_clock_is_that_of_redis(async_redis) -> None:
    limits, key_id = KeyLimits(requests_per_minute=1), new_id()
    assert (await take(async_redis, key_id, limits, [0])).num_jobs == 1
    seconds, microseconds = await async_redis.time()
    full_at = int(await async_redis.get(f"rate:{key_id.hex}:requests"))
    assert 0 < full_at - (seconds * 1_000_000 + microseconds) <= 60_000_000
