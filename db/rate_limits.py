"""How fast a key submits: its counters in Redis, `rate:<key>:requests` and `rate:<key>:tokens`, moved by one script."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from uuid import UUID

import redis.asyncio

from db.key_limits import KeyLimits

PREFIX = "rate:"
MINUTE = 60_000_000  # microseconds
SCRIPT = files("db").joinpath("lua/rate.lua").read_text()


@dataclass(frozen=True)
class Rate:
    """What a minute allows, and how it stands: a bucket of `limit` that fills evenly."""

    limit: int  # 0: any number
    full_in: int  # microseconds

    @property
    def remaining(self) -> int:
        """How much may be taken at once, now."""
        return (MINUTE - self.full_in) * self.limit // MINUTE

    def room_in(self, amount: int) -> float:
        """Seconds until `amount` may be taken, which is at most `limit`."""
        if self.limit == 0:
            return 0.0
        return max(0.0, (self.full_in + amount * MINUTE / self.limit - MINUTE) / 1e6)


@dataclass(frozen=True)
class Taken:
    """What one take got: room for the first `num_jobs` of its jobs. With none, nothing was taken."""

    num_jobs: int
    requests: Rate
    tokens: Rate


async def take(
    client: redis.asyncio.Redis,
    key_id: UUID,
    limits: KeyLimits,
    tokens: Sequence[int],
    *,
    num_requests: int = 1,
    now: float | None = None,
) -> Taken:
    """Take a request, and for each of its jobs so many tokens, in one round trip.

    `now` (Unix seconds) replaces the server's clock.
    """
    most = limits.requests_per_minute or 0, limits.tokens_per_minute or 0
    moment = "" if now is None else round(now * 1e6)
    arguments: list[Any] = [moment, *most, num_requests, *tokens]
    keys = [f"{PREFIX}{key_id.hex}:{unit}" for unit in ("requests", "tokens")]
    num_jobs, *full_in = await client.register_script(SCRIPT)(keys=keys, args=arguments)
    return Taken(num_jobs, Rate(most[0], full_in[0]), Rate(most[1], full_in[1]))
