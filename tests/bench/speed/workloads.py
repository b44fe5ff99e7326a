"""The five workloads. Everything is a function of a seed; prompts are token ids, and only W4's share a beginning.

A server that stays up gets another seed for every repetition: a prefix cache would answer from the run before.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

FIRST_ID, END_ID = 300, 8000  # of the tokens that the tokenizer learned: each is plain text by itself
Range = tuple[int, int]

NUM_LONG = 1500  # tokens of the prompt that arrives while others decode
NUM_SHARED = 512  # of W4's prompts


class Mode(Enum):
    """When jobs are submitted."""

    TOGETHER = "together"
    ONE_BY_ONE = "one by one"
    TIMED = "timed"
    BESIDE = "beside"  # the long one once the others are decoding


@dataclass(frozen=True)
class Job:
    """A prompt and how many tokens to write for it."""

    prompt: list[int]
    max_tokens: int
    at: float = 0.0  # seconds after the workload began, where that is timed
    is_long: bool = False


@dataclass(frozen=True)
class Workload:
    """Jobs, and when to submit them."""

    name: str
    mode: Mode
    jobs: list[Job]
    num_before: int = 0  # tokens that each stream has before the long prompt arrives


def make_w1(seed: str, *, num_jobs: int = 64, outputs: Range = (32, 128)) -> Workload:
    """Many jobs at once: throughput."""
    rng = random.Random(f"w1/{seed}")
    return Workload("W1", Mode.TOGETHER, [_make_job(rng, outputs) for _ in range(num_jobs)])


def make_w2(seed: str, *, num_jobs: int = 5, num_output: int = 64) -> Workload:
    """One job at a time: latency."""
    rng = random.Random(f"w2/{seed}")
    return Workload("W2", Mode.ONE_BY_ONE, [Job(_make_prompt(rng, 128), num_output) for _ in range(num_jobs)])


def make_w3(seed: str, *, per_second: float, num_jobs: int = 40) -> Workload:
    """Jobs like W1's that arrive at random, at the same rate for everybody: latency under load."""
    rng, at, jobs = random.Random(f"w3/{seed}"), 0.0, []
    for _ in range(num_jobs):
        at += rng.expovariate(per_second)
        jobs.append(_make_job(rng, (32, 128), at=at))
    return Workload("W3", Mode.TIMED, jobs)


def make_w4(seed: str, *, is_warm: bool, num_jobs: int = 32) -> Workload:
    """Prompts that begin alike; warm, the beginning has been computed before."""
    shared = _make_prompt(random.Random(f"w4/{seed}/prefix"), NUM_SHARED)
    rng = random.Random(f"w4/{seed}/{'warm' if is_warm else 'cold'}")
    jobs = [Job(shared + _make_prompt(rng, 32), 32) for _ in range(num_jobs)]
    return Workload("W4 warm" if is_warm else "W4 cold", Mode.TOGETHER, jobs)


def make_w5(seed: str, *, num_streams: int = 8, num_output: int = 160, num_before: int = 16) -> Workload:
    """Streams that decode while a long prompt arrives: how long they stall."""
    rng = random.Random(f"w5/{seed}")
    jobs = [Job(_make_prompt(rng, 64), num_output) for _ in range(num_streams)]
    jobs.append(Job(_make_prompt(rng, NUM_LONG), 16, is_long=True))
    return Workload("W5", Mode.BESIDE, jobs, num_before)


def make_warm_up(seed: str) -> list[Workload]:
    """Work that pages in, compiles and allocates what the measured will need; its prompts never come again."""
    return [
        make_w2(f"warm{seed}", num_jobs=2, num_output=8),
        make_w1(f"warm{seed}", num_jobs=8, outputs=(8, 8)),
        make_w5(f"warm{seed}", num_streams=2, num_output=24, num_before=2),
    ]


def make_suite(seed: str, names: Iterable[str], *, per_second: float = 1.0) -> list[Workload]:
    """Those of `W1` to `W5` that are named, in the order in which they are measured."""
    makers: dict[str, Callable[[], list[Workload]]] = {
        "W2": lambda: [make_w2(seed)],
        "W1": lambda: [make_w1(seed)],
        "W3": lambda: [make_w3(seed, per_second=per_second)],
        "W5": lambda: [make_w5(seed)],
        "W4": lambda: [make_w4(seed, is_warm=False), make_w4(seed, is_warm=True)],
    }
    chosen = set(names)
    return [workload for name, make in makers.items() if name in chosen for workload in make()]


def _make_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(FIRST_ID, END_ID) for _ in range(num_tokens)]


def _make_job(rng: random.Random, outputs: Range, *, at: float = 0.0) -> Job:
    return Job(_make_prompt(rng, rng.randint(64, 256)), rng.randint(*outputs), at)
