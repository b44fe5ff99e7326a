"""The jobs at whose chosen tokens the worker of `tests/workers/dying_app.py` dies, kept in Redis for both to see."""

from collections.abc import Mapping
from uuid import UUID

import redis

KEY = "condemned"  # a hash: job id -> how many tokens its stream gets


def condemn(client: redis.Redis, num_tokens: Mapping[UUID, int]) -> None:
    """Let the worker die once each of these jobs has delivered exactly so many tokens. They must not have more yet."""
    client.hset(KEY, mapping={job_id.hex: num for job_id, num in num_tokens.items()})


def condemned(client: redis.Redis) -> dict[UUID, int]:
    """The jobs, and how many tokens their streams get."""
    return {UUID(key.decode()): int(num) for key, num in client.hgetall(KEY).items()}


def pardon(client: redis.Redis) -> None:
    """Let a next worker live."""
    client.delete(KEY)
