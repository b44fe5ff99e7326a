"""One workload, all there from the start, batched in two ways: whole batches, or each seat refilled once it is free."""

import random
import time
from dataclasses import dataclass, field

from tests.bench.engine_world import make_prompt, make_sequence
from workers.engine.engine import Engine
from workers.engine.sequence import Sequence

NUM_SEQUENCES = 64
SHARE_SHORT = 0.75
NUM_SHORT, NUM_LONG = (8, 24), (100, 200)  # output tokens, from and to


@dataclass
class Served:
    """When the sequences ended, in seconds since the start."""

    short_seconds: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_steps: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def measure(engine: Engine, *, is_static: bool) -> Served:
    """`is_static`: nobody starts before the last of the batch before has ended."""
    sequences = make_sequences()
    size = engine.config.max_num_seqs if is_static else len(sequences)
    served = Served()
    began = time.perf_counter()
    for first in range(0, len(sequences), size):
        for sequence in sequences[first : first + size]:
            engine.add(sequence)
        while engine.has_work:
            outputs = engine.step()
            served.num_steps += 1
            now = time.perf_counter() - began
            served.num_tokens += len(outputs)
            ended = [output.sequence_id for output in outputs if output.finish_reason is not None]
            served.short_seconds += [now for id in ended if id.startswith("short")]
    served.seconds = time.perf_counter() - began
    return served


def make_sequences() -> list[Sequence]:
    """Three in four answer shortly, in no order."""
    rng = random.Random(1)
    sequences = []
    for i in range(NUM_SEQUENCES):
        name, between = ("short", NUM_SHORT) if rng.random() < SHARE_SHORT else ("long", NUM_LONG)
        prompt = make_prompt(rng, rng.randint(16, 64))
        sequences.append(make_sequence(f"{name}.{i}", prompt, max_tokens=rng.randint(*between)))
    return sequences
