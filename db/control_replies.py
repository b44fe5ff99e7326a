"""What a Celery control command leaves in Redis when its client was killed between asking and reading.

The worker pushes its reply all the same, into a list without expiry; so does one that answers just as a client that had
enough answers goes away. And the binding through which it found that list stays: kombu drops a table of bindings as a
whole, an hour after the last was made, so never where someone goes on asking.
"""

from collections.abc import Collection
from typing import Any

import redis

REPLIES = "reply.celery.pidbox"  # the exchange; each client's queue is `<its id>.reply.celery.pidbox`
BINDINGS = f"_kombu.binding.{REPLIES}"
REPLY_SECONDS = 300  # a client that lives reads a reply at once


def expire(client: redis.Redis, cursor: int, num_keys: int) -> int:
    """The next cursor, 0 at the walk's end. Lists of replies among about so many keys from this one on will expire."""
    answer: Any = client.scan(cursor, match=f"*.{REPLIES}", count=num_keys, _type="list")
    cursor, keys = answer
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.expire(key, REPLY_SECONDS, nx=True)
    pipeline.execute()
    return cursor


def bindings(client: redis.Redis) -> set[bytes]:
    """Those of all clients that wait for replies, or were killed while they did."""
    members: Any = client.smembers(BINDINGS)
    return set(members)


def unbind(client: redis.Redis, left: Collection[bytes]) -> None:
    """Remove these bindings. What is still sent through them is dropped by kombu, without an error."""
    client.srem(BINDINGS, *left)
