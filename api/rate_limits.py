"""What a key may take in a minute, and what the replies tell of it. While Redis is away, everybody is let in."""

import asyncio
import logging
import time
from collections.abc import Sequence
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.errors import NO_RETRY, ApiError, retry_after
from db import rate_limits
from db.key_limits import KeyLimits
from db.rate_limits import Rate, Taken

PATIENCE_SECONDS = 1.0  # with a Redis that does not answer
AWAY_SECONDS = 1.0  # that it is not asked again

log = logging.getLogger(__name__)


class RateLimiter:
    """Counts in Redis, for all requests of the process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._away_until = 0.0  # monotonic; written by the event loop only

    async def take(self, key_id: UUID, limits: KeyLimits, tokens: Sequence[int], *, num_requests: int) -> Taken | None:
        """As `db.rate_limits.take`; None while Redis is away, when nothing is counted."""
        if time.monotonic() < self._away_until:
            return None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await rate_limits.take(self._redis, key_id, limits, tokens, num_requests=num_requests)
        except (RedisError, OSError) as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            log.warning("rates of keys are not limited", extra={"error": str(error) or type(error).__name__})
            return None


class Allowance:
    """What one request may take of its key's limits. The request counts once, the tokens of each of its jobs too.

    It counts with its first jobs that are let in; one that queues nothing, when its reply is told how the key stands.
    """

    def __init__(self, limiter: RateLimiter | None = None, key_id: UUID | None = None, limits: KeyLimits | None = None):
        """Without arguments: of whoever is not limited."""
        self.limits = limits or KeyLimits()
        self._limiter = limiter
        self._key_id = key_id
        self._taken: Taken | None = None  # how the rates stand; None: nobody asked, or Redis is away
        self._is_counted = False

    async def let_in(self, tokens: Sequence[int]) -> int:
        """How many of the jobs, of so many tokens each, may be queued, from the first on. They are taken off."""
        if self._limiter is None or self._key_id is None or not self.limits.has_rates:
            return len(tokens)
        num_requests = 0 if self._is_counted else 1
        taken = await self._limiter.take(self._key_id, self.limits, tokens, num_requests=num_requests)
        if taken is None:
            return len(tokens)
        self._taken = taken
        self._is_counted = self._is_counted or taken.num_jobs > 0
        return taken.num_jobs

    def refusal(self, num_tokens: int) -> ApiError:
        """The 429 for a job of `num_tokens` that was not let in."""
        assert self._taken is not None, "whoever is not counted is let in"
        requests, tokens = self._taken.requests, self._taken.tokens
        if 0 < tokens.limit < num_tokens:
            return _too_large(tokens, num_tokens)
        for_request = 0.0 if self._is_counted else requests.room_in(1)
        for_tokens = tokens.room_in(num_tokens)
        seconds = max(for_request, for_tokens)
        fact = _no_requests(requests) if for_request else _few_tokens(tokens, num_tokens)
        message = f"{fact} Nothing was queued; try again in {seconds:.3g} s, or ask the operator for more."
        return ApiError(429, message, code="rate_limit_exceeded", headers=retry_after(seconds))

    async def headers(self) -> dict[str, str]:
        """`x-ratelimit-*` for the reply, of those rates that are limited; none while Redis is away."""
        if self._taken is None:
            await self.let_in([0])
        taken = self._taken
        if taken is None:
            return {}
        return _headers("requests", taken.requests) | _headers("tokens", taken.tokens)


def _no_requests(rate: Rate) -> str:
    return f"This key may send {rate.limit:,} requests a minute, and has sent them."


def _few_tokens(rate: Rate, num_tokens: int) -> str:
    return (
        f"This key may submit {rate.limit:,} tokens a minute, in prompts and max_tokens; {rate.remaining:,} are left, "
        f"and this job has {num_tokens:,}."
    )


def _too_large(rate: Rate, num_tokens: int) -> ApiError:
    """For a job that no waiting helps."""
    message = (
        f"This job has {num_tokens:,} tokens, in its prompt and max_tokens; this key may submit {rate.limit:,} a "
        "minute. Ask for fewer, or ask the operator for more."
    )
    return ApiError(429, message, code="request_too_large", headers=NO_RETRY)


def _headers(unit: str, rate: Rate) -> dict[str, str]:
    if rate.limit == 0:
        return {}
    return {
        f"x-ratelimit-limit-{unit}": str(rate.limit),
        f"x-ratelimit-remaining-{unit}": str(rate.remaining),
        f"x-ratelimit-reset-{unit}": duration(rate.full_in),
    }


def duration(microseconds: int) -> str:
    """As OpenAI spells it, rounded up: `0s`, `120ms`, `8.64s`, `1m0s`."""
    milliseconds = -(-microseconds // 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:g}s"
    return f"{minutes}m{seconds}" if minutes else seconds
