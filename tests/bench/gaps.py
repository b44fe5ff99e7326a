"""How long running sequences wait for their next token while a long prompt arrives beside them."""

import random
import time
from dataclasses import dataclass

from tests.bench.engine_world import make_prompt, make_sequence
from workers.engine.engine import Engine

NUM_RUNNING = 4
NUM_LONG_PROMPT = 1500
NUM_ARRIVALS = 4  # of long prompts, one after the other
NUM_BETWEEN = 20  # steps


@dataclass(frozen=True)
class Gaps:
    """In seconds, one of each per arrival."""

    longest: list[float]  # between two tokens of a running sequence, until the long prompt's first token
    first_token: list[float]  # of the long prompt, from its arrival


def measure(engine: Engine) -> Gaps:
    """The first arrival comes before the engine knows what prompts cost; it is left out."""
    rng = random.Random(1)
    for i in range(NUM_RUNNING):
        engine.add(make_sequence(f"running.{i}", make_prompt(rng, 64), max_tokens=1900))
    longest, first_token = [], []
    for number in range(NUM_ARRIVALS + 1):
        for _ in range(NUM_BETWEEN):
            engine.step()
        engine.add(make_sequence(f"long.{number}", make_prompt(rng, NUM_LONG_PROMPT), max_tokens=1))
        gap, seconds = _until_first_token(engine, f"long.{number}")
        longest.append(gap)
        first_token.append(seconds)
    for i in range(NUM_RUNNING):
        engine.abort(f"running.{i}")
    return Gaps(longest[1:], first_token[1:])


def _until_first_token(engine: Engine, id: str) -> tuple[float, float]:
    """The longest step, as each gives every running sequence its token, and all of them together."""
    began = last = time.perf_counter()
    longest = 0.0
    while True:
        outputs = engine.step()
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if any(output.sequence_id == id for output in outputs):
            return longest, now - began
