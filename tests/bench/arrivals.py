"""Sequences that come when they come, however slow the engine is: how long each takes from its arrival."""

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.bench.engine_world import make_prompt, make_sequence
from workers.engine.engine import Engine


@dataclass(frozen=True)
class Kind:
    """One sort of sequence in a workload."""

    name: str
    num_prompt: int
    num_output: int
    per_second: float
    is_random: bool  # arrives at random (Poisson); else at even intervals


@dataclass(frozen=True)
class Arrival:
    at_seconds: float  # since the start
    id: str  # the kind's name and a number
    prompt: list[int]
    num_output: int


@dataclass
class Latency:
    """Seconds since the arrival."""

    first_token: float
    last_token: float


def make_arrivals(kinds: Iterable[Kind], *, seconds: float) -> list[Arrival]:
    """The same ones on every call; those of a kind do not depend on the other kinds."""
    arrivals = [arrival for kind in kinds for arrival in _arrivals_of(kind, seconds)]
    return sorted(arrivals, key=lambda arrival: arrival.at_seconds)


def serve(engine: Engine, arrivals: list[Arrival]) -> dict[str, Latency]:
    """Play the arrivals in real time; latencies by id."""
    pending, arrived_at = list(reversed(arrivals)), {a.id: a.at_seconds for a in arrivals}
    latencies: dict[str, Latency] = {}
    began = time.perf_counter()
    while pending or engine.has_work:
        now = time.perf_counter() - began
        while pending and pending[-1].at_seconds <= now:
            arrival = pending.pop()
            engine.add(make_sequence(arrival.id, arrival.prompt, max_tokens=arrival.num_output))
        if not engine.has_work:
            time.sleep(max(0.0, pending[-1].at_seconds - now))
        for output in engine.step():
            since = time.perf_counter() - began - arrived_at[output.sequence_id]
            latencies.setdefault(output.sequence_id, Latency(since, since)).last_token = since
    return latencies


def _arrivals_of(kind: Kind, seconds: float) -> Iterator[Arrival]:
    rng = random.Random(kind.name)
    at, number = 0.0, 0
    while True:
        at += rng.expovariate(kind.per_second) if kind.is_random else 1 / kind.per_second
        if at >= seconds:
            return
        yield Arrival(at, f"{kind.name}.{number}", make_prompt(rng, kind.num_prompt), kind.num_output)
        number += 1
