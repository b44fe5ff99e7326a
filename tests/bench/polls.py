"""Clients that submit jobs over time and ask, now and then, when those that wait will start."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

from api.job_view import PREFIX
from db.ids import parse_id
from db.settings import TIERS
from tests.bench import load
from tests.bench.http_client import HttpClient
from tests.bench.stack import Stack

POLL_SECONDS = 2.0  # on average, at random: so that any moment of a wait is as likely as any other
MAX_CALLS = 16  # at once


@dataclass(frozen=True)
class Phase:
    """A stretch of the run: jobs that come at its start, and more per second, at random, of each tier."""

    name: str
    seconds: float
    at_once: tuple[int, int, int] = (0, 0, 0)
    per_second: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Arrival:
    """A job that is to be submitted so many seconds into the run."""

    at: float
    phase: str
    tier: int
    key: int
    max_tokens: int


@dataclass(frozen=True)
class Poll:
    """What a client was told about its waiting job, and when it knew. Times are Unix seconds."""

    job_id: UUID
    phase: str
    tier: int
    at: float
    is_submit: bool  # the submit's own answer
    is_parked: bool
    position: int
    times: tuple[float, float, float] | None  # earliest, likely, latest; None: no estimate


def arrivals(phases: Sequence[Phase], random: Random, *, num_keys: int, num_tokens: Sequence[int]) -> list[Arrival]:
    """The jobs of all phases, by time, half of them the first key's. `num_tokens`: what a job makes is one of these."""
    found, began, shares = list[Arrival](), 0.0, [num_keys - 1] + [1] * (num_keys - 1)
    for phase in phases:
        for tier in range(len(TIERS)):
            for at in _times(phase, tier, random):
                [key] = random.choices(range(num_keys), shares)
                found.append(Arrival(began + at, phase.name, tier, key, random.choice(num_tokens)))
        began += phase.seconds
    return sorted(found, key=lambda arrival: arrival.at)


def _times(phase: Phase, tier: int, random: Random) -> Iterator[float]:
    yield from [0.0] * phase.at_once[tier]
    if phase.per_second[tier]:
        at = random.expovariate(phase.per_second[tier])
        while at < phase.seconds:
            yield at
            at += random.expovariate(phase.per_second[tier])


async def run(stack: Stack, jobs: Sequence[Arrival], random: Random) -> list[Poll]:
    """Submit the jobs when they are due and poll each until it starts; everything that was told."""
    polls, began, gate = list[Poll](), time.time(), asyncio.Semaphore(MAX_CALLS)

    async def call(
        method: str, path: str, key: str, body: dict[str, Any] | None = None
    ) -> tuple[float, dict[str, Any]]:
        """When the answer came, and the answer."""
        async with gate:
            client = await HttpClient.connect(stack.settings.port)
            status, answer = await client.call(method, path, key, body)
            client.close()
        assert status in (200, 202), f"a client was answered {status}: {answer.decode()}"
        return time.time(), json.loads(answer)

    async def follow(job: Arrival) -> None:
        await asyncio.sleep(max(0.0, began + job.at - time.time()))
        key, body = stack.keys[job.key], load.job(job.max_tokens) | {"tier": TIERS[job.tier]}
        at, told = await call("POST", "/v1/jobs", key, body)
        is_submit = True
        while told["status"] == "queued":
            polls.append(_poll(job, told, at, is_submit=is_submit))
            await asyncio.sleep(random.expovariate(1 / POLL_SECONDS))
            at, told = await call("GET", told["links"]["self"], key)
            is_submit = False

    await asyncio.gather(*(follow(job) for job in jobs))
    return polls


def _poll(job: Arrival, told: dict[str, Any], at: float, *, is_submit: bool) -> Poll:
    job_id, estimate = parse_id(PREFIX, told["id"]), told["estimate"]
    assert job_id is not None
    times = None
    if estimate is not None:
        earliest, likely, latest = (_seconds(estimate[name]) for name in ("earliest", "start_at", "latest"))
        times = earliest, likely, latest
    return Poll(job_id, job.phase, job.tier, at, is_submit, told["ready_at"] is None, told["position"], times)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
