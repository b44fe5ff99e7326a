"""Clients of the API: one that submits now and then, and many that submit as fast as they are answered."""

import asyncio
import time
from itertools import count
from typing import Any

from tests.bench.http_client import HttpClient
from tests.bench.null_model import NAME, PROMPT, DirectEngine
from tests.bench.stack import Stack

PAUSE_SECONDS = 0.01  # between two jobs of an idle system


def job(max_tokens: int = 1) -> dict[str, Any]:
    """A job whose work is nothing but the tokens it makes."""
    return {"model": NAME, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


async def submit_singly(stack: Stack, num_jobs: int) -> list[float]:
    """Submit one job at a time on an idle system; the Unix times at which they were sent."""
    client, sent_at = await HttpClient.connect(stack.settings.port), []
    for _ in range(num_jobs):
        since = stack.now()
        sent_at.append(time.time())
        status = await client.post("/v1/jobs", job(), stack.keys[0])
        assert status == 202, f"a submit was answered {status}"
        while stack.done(since).num_ended < 1:
            await asyncio.sleep(PAUSE_SECONDS)
    client.close()
    return sent_at


async def first_tokens(stack: Stack, engine: DirectEngine, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds to the first token through the service and on the engine directly, in turns."""
    client, pairs = await HttpClient.connect(stack.settings.port), []
    for _ in range(num_pairs):
        began = asyncio.get_running_loop().time()
        arrived_at = await client.first_event("/v1/completions", job() | {"stream": True}, stack.keys[0])
        pairs.append((arrived_at - began, engine.first_token_seconds()))
        await asyncio.sleep(PAUSE_SECONDS)
    client.close()
    return pairs


async def submit_all(
    stack: Stack, *, num_connections: int, seconds: float = 0.0, num_jobs: int = 10**9, max_tokens: int = 1
) -> list[float]:
    """Submit over many connections, each as soon as it is answered, until time or jobs are up; seconds per submit."""
    numbers, latencies = count(), list[float]()
    deadline = time.perf_counter() + (seconds or 10**9)

    async def submit() -> None:
        client = await HttpClient.connect(stack.settings.port)
        while (began := time.perf_counter()) < deadline and (number := next(numbers)) < num_jobs:
            key = stack.keys[number % len(stack.keys)]
            status = await client.post("/v1/jobs", job(max_tokens), key)
            assert status == 202, f"a submit was answered {status}"
            latencies.append(time.perf_counter() - began)
        client.close()

    await asyncio.gather(*(submit() for _ in range(num_connections)))
    return latencies
