"""What the prefix cache costs where it finds nothing: the same sequences with it and without, in turns."""

import random
import time
from dataclasses import dataclass

from tests.bench.engine_world import make_sequence
from tests.bench.null_runner import VOCAB_SIZE, null_engine
from workers.engine.engine import Engine

NUM_SEQUENCES = 8
NUM_PROMPT, NUM_OUTPUT = 200, 32
NUM_TOKENS = NUM_SEQUENCES * (NUM_PROMPT + NUM_OUTPUT)


@dataclass(frozen=True)
class Pair:
    """Seconds of one round with the cache, and of the same without."""

    on: float
    off: float

    @property
    def cost(self) -> float:
        """Of throughput, as a share of it."""
        return 1 - self.off / self.on


def measure(on: Engine, off: Engine, *, num_pairs: int) -> list[Pair]:
    """Rounds in turns, each side first as often as the other. The first pair warms both up, and is left out."""
    pairs = []
    for number in range(num_pairs + 1):
        if number % 2:
            off_seconds = _round(off, seed=number)
            on_seconds = _round(on, seed=number)
        else:
            on_seconds = _round(on, seed=number)
            off_seconds = _round(off, seed=number)
        pairs.append(Pair(on_seconds, off_seconds))
    assert on.scheduler.blocks.stats.hit_tokens == 0, "some of it was shared"
    return pairs[1:]


def measure_engine_alone(*, num_pairs: int) -> list[Pair]:
    """The same with a runner that computes nothing, so that what is left is the cost itself."""
    return measure(_engine_alone(is_caching=True), _engine_alone(is_caching=False), num_pairs=num_pairs)


def _engine_alone(*, is_caching: bool) -> Engine:
    engine, _ = null_engine(max_num_seqs=NUM_SEQUENCES, token_budget=512, num_blocks=1024, is_caching=is_caching)
    return engine


def _round(engine: Engine, *, seed: int) -> float:
    """Seconds for sequences of which no two begin alike, submit to last token."""
    rng = random.Random(seed)
    prompts = [rng.choices(range(3, VOCAB_SIZE), k=NUM_PROMPT) for _ in range(NUM_SEQUENCES)]
    began = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add(make_sequence(str(i), prompt, max_tokens=NUM_OUTPUT))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began
