"""The tier lists in Redis: one per model and tier, first in, first out, in the message format of Celery's own client.

A list's right end is its head, as kombu pops it. Redis only orders: a message twice in a list, or without its job, does
no harm, because only a claim in Postgres makes a job somebody's.
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import Any
from uuid import UUID, uuid4

import redis
import redis.asyncio

from db.queue_message import Ready, encode, encode_sent_event, event_channel, queue_name
from db.settings import TIERS

__all__ = [
    "Message",
    "Popped",
    "Ready",
    "Waiter",
    "clear",
    "depths",
    "heads",
    "pop",
    "push",
    "push_async",
    "push_front",
    "remove",
    "remove_async",
    "queue_name",
    "wake_channel",
]

POP = files("db").joinpath("lua/pop.lua").read_text()
PUSH_FRONT = files("db").joinpath("lua/push_front.lua").read_text()
STAMP = re.compile(rb'"ready_at": ([\d.]+), "num_blocks": (\d+)}}$')
PAGE = 1000  # messages in one command
SIDE_SECONDS = 60  # a repair that was cut off leaves nothing behind
LONG_LIST = 10_000  # messages; searching more of them would hold up everybody else's commands
MOST_HEADS_BEHIND = 10_000  # how far `push_front` looks for a message's place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Message:
    """A popped message. `raw` is what Celery decodes."""

    job_id: UUID
    ready_at: float
    num_blocks: int
    tier: int
    raw: bytes
    fits: bool = True  # False: it needs more blocks than were offered, and came alone


@dataclass(frozen=True)
class Waiter:
    """A job that its worker holds until so many blocks are free: what goes behind it in the order leaves them to it."""

    tier: int
    ready_at: float  # Unix seconds, Postgres clock
    num_blocks: int


@dataclass(frozen=True)
class Popped:
    """What one pop took, in order, and how many messages the lists held before."""

    messages: list[Message]
    depth: int


def wake_channel(model: str) -> str:
    """Where a push is announced to idle workers of the model."""
    return f"wake.{model}"


def push(client: redis.Redis, readies: Iterable[Ready]) -> None:
    """Append jobs to their lists, oldest first, tell Flower of each, and wake idle workers: one round trip."""
    pipeline = client.pipeline(transaction=False)
    if _queue_push(pipeline, readies, _database(client)):
        pipeline.execute()


async def push_async(client: redis.asyncio.Redis, readies: Iterable[Ready]) -> None:
    """The same for the API's event loop."""
    pipeline = client.pipeline(transaction=False)
    if _queue_push(pipeline, readies, _database(client)):
        await pipeline.execute()


def _queue_push(pipeline: Any, readies: Iterable[Ready], database: int) -> bool:
    """Put the commands on a pipeline of either kind; whether there are any."""
    models = set()
    for ready in readies:
        pipeline.lpush(queue_name(ready.model, ready.tier), encode(ready))
        pipeline.publish(event_channel(database), encode_sent_event(ready))
        models.add(ready.model)
    for model in models:
        pipeline.publish(wake_channel(model), "push")
    return bool(models)


def push_front(client: redis.Redis, readies: Iterable[Ready]) -> int:
    """Put jobs that were in their lists before at the head, in order, behind whatever is older; returns how many.

    Any number of them becomes visible at once: they are collected in a side list, which one script moves.
    """
    ordered = sorted(readies, key=lambda ready: (ready.model, ready.tier, -ready.ready_at))
    script, num_pushed = client.register_script(PUSH_FRONT), 0
    for (model, tier), group in groupby(ordered, key=lambda ready: (ready.model, ready.tier)):
        side = f"side.{uuid4()}"
        members = list(group)
        for start in range(0, len(members), PAGE):
            pipeline = client.pipeline(transaction=False)
            pipeline.rpush(side, *map(encode, members[start : start + PAGE]))
            pipeline.expire(side, SIDE_SECONDS)
            pipeline.execute()
        num_pushed += script(keys=[queue_name(model, tier), side, f"{side}.aside"], args=[MOST_HEADS_BEHIND])
        client.publish(wake_channel(model), "push")
    return num_pushed


def remove(client: redis.Redis, readies: Iterable[Ready]) -> None:
    """Take the messages of jobs that ended while they waited out of their lists, as `remove_async` does."""
    by_list: dict[str, list[Ready]] = {}
    for ready in readies:
        by_list.setdefault(queue_name(ready.model, ready.tier), []).append(ready)
    for name, members in by_list.items():
        if client.llen(name) <= LONG_LIST:
            pipeline = client.pipeline(transaction=False)
            for ready in members:
                pipeline.lrem(name, 0, encode(ready).decode())
            pipeline.execute()


def clear(client: redis.Redis, model: str, tier: int) -> None:
    """Empty a list. The sweep puts back what is still queued."""
    client.delete(queue_name(model, tier))


async def remove_async(client: redis.asyncio.Redis, ready: Ready) -> None:
    """Take the message of a job that was cancelled out of its list. In a long list it stays: its claim will fail."""
    name = queue_name(ready.model, ready.tier)
    if await client.llen(name) <= LONG_LIST:
        await client.lrem(name, 0, encode(ready).decode())


def pop(
    client: redis.Redis,
    *,
    model: str,
    now: float,
    policy: str,
    threshold: float,
    boost: float,
    seats: int,
    blocks: int,
    live_workers: int,
    pops: int,
    waiters: Sequence[Waiter] = (),
    tiers: Collection[int] = range(len(TIERS)),
) -> Popped:
    """Take the next jobs of `model`: at most `seats`, at most this worker's share of the depth, as long as they fit.

    `now` is Unix seconds on the Postgres clock. `pops` counts the messages popped before, for the turns that the tiers
    take. The first message is taken also when its blocks do not fit; it comes alone then, marked so. Beside `waiters`
    no such message is taken. Only `tiers` are looked at.
    """
    if seats <= 0:
        return Popped([], sum(depths(client, model).values()))
    mask = "".join("1" if tier in tiers else "0" for tier in range(len(TIERS)))
    arguments: list[str | float] = [now, policy, threshold, boost, seats, blocks, max(1, live_workers), pops, mask]
    for waiter in waiters:
        arguments += [waiter.tier, waiter.ready_at, waiter.num_blocks]
    depth, *reply = client.register_script(POP)(keys=_lists(model), args=arguments)
    messages = []
    for tier, raw in zip(reply[::2], reply[1::2], strict=True):
        message = _decode(raw, tier, blocks)
        if message is not None:
            messages.append(message)
            blocks -= message.num_blocks
    return Popped(messages, depth)


def heads(client: redis.Redis, model: str) -> dict[int, float | None]:
    """When each tier's oldest message became ready (Unix seconds); None for an empty list."""
    pipeline = client.pipeline(transaction=False)
    for name in _lists(model):
        pipeline.lindex(name, -1)
    return {tier: None if raw is None else _stamp(raw)[0] for tier, raw in enumerate(pipeline.execute())}


def depths(client: redis.Redis, model: str) -> dict[int, int]:
    """How many messages each tier's list holds."""
    pipeline = client.pipeline(transaction=False)
    for name in _lists(model):
        pipeline.llen(name)
    return dict(enumerate(pipeline.execute()))


def _lists(model: str) -> list[str]:
    return [queue_name(model, tier) for tier in range(len(TIERS))]


def _decode(raw: bytes, tier: int, blocks: int) -> Message | None:
    ready_at, num_blocks = _stamp(raw)
    try:
        job_id = UUID(json.loads(raw)["headers"]["id"])
    except (ValueError, KeyError, TypeError):
        log.warning("dropped a message that is no job", extra={"queue_tier": TIERS[tier], "message_start": raw[:200]})
        return None
    return Message(job_id, ready_at, num_blocks, tier, raw, fits=num_blocks <= blocks)


def _stamp(raw: bytes) -> tuple[float, int]:
    """(ready_at, num_blocks); zeros, as in the scripts, for a message that another client sent."""
    found = STAMP.search(raw)
    return (float(found[1]), int(found[2])) if found else (0.0, 0)


def _database(client: redis.Redis | redis.asyncio.Redis) -> int:
    return int(client.connection_pool.connection_kwargs.get("db") or 0)
