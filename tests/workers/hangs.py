"""How the worker of `tests/workers/hung_app.py` hangs, and the key in Redis by which a test tells it."""

from enum import Enum

import redis


class Hang(Enum):
    """Where a step is that does not end."""

    BESIDE_PYTHON = "beside"  # in C, as a kernel is: the other threads run
    WITH_PYTHON = "with"  # in C that keeps Python's lock: no other thread runs either


def hang(client: redis.Redis, model: str, how: Hang) -> None:
    """Let the next step of a worker of `model` never end; only one's, whichever comes first."""
    client.set(_key(model), how.value)


def take_hang(client: redis.Redis, model: str) -> Hang | None:
    """How the step that begins now is to hang, if it is."""
    how = client.getdel(_key(model))
    return None if how is None else Hang(how.decode())


def _key(model: str) -> str:
    return f"hang:{model}"
