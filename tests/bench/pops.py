"""How long a pop takes, by the number of queued messages. Redis alone: no job is behind them."""

import time
from collections.abc import Iterator
from itertools import count, islice
from uuid import UUID

import redis

from db import queue
from db.queue import Ready, queue_name
from db.queue_message import encode
from db.settings import TIERS

MODEL = "pops"
DEPTHS = (100, 10_000, 1_000_000)
NUM_POPS = 1000
PAGE = 2000


def measure(client: redis.Redis) -> dict[int, list[float]]:
    """Seconds of each pop of one message, by depth. What is popped is pushed back between two pops."""
    client.config_set("appendonly", "no")  # a gigabyte of messages is nothing to keep
    messages, seconds = _messages(), {}
    for depth in DEPTHS:
        _fill(client, depth, messages)
        seconds[depth] = [_pop_and_push_back(client, depth) for _ in range(NUM_POPS)]
    client.delete(*(queue_name(MODEL, tier) for tier in range(len(TIERS))))
    client.config_set("appendonly", "yes")
    return seconds


def _messages() -> Iterator[bytes]:
    """Messages of as many jobs as are wanted. Encoding each of a million by itself would take a minute."""
    first = UUID(int=0)
    sample = encode(Ready(first, MODEL, 1, time.time(), 1))
    return (sample.replace(str(first).encode(), str(UUID(int=number)).encode()) for number in count(1))


def _fill(client: redis.Redis, depth: int, messages: Iterator[bytes]) -> None:
    """Fill up to `depth`, the same in each tier."""
    for tier in range(len(TIERS)):
        name, wanted = queue_name(MODEL, tier), depth // len(TIERS)
        while (missing := wanted - client.llen(name)) > 0:
            client.lpush(name, *islice(messages, min(missing, PAGE)))


def _pop_and_push_back(client: redis.Redis, depth: int) -> float:
    now, began = time.time(), time.perf_counter()
    aging = {"policy": "aging", "threshold": 30.0, "boost": 0.5}
    popped = queue.pop(client, model=MODEL, now=now, seats=1, blocks=1, live_workers=1, pops=0, **aging)
    seconds = time.perf_counter() - began
    [message] = popped.messages
    client.rpush(queue_name(MODEL, message.tier), message.raw)
    return seconds
