"""One or two sequences on the engine and in a bare loop over the same model, a step of each in turns."""

import random
import time
from dataclasses import dataclass, field
from statistics import median

from tests.bench.bare_loop import BareLoop
from tests.bench.engine_world import make_engine, make_prompt, make_sequence
from workers.models.decoder import Decoder

NUM_PROMPT = 64
NUM_WARM = 8  # steps that are not counted
NUM_STEPS = 120


@dataclass
class Serial:
    """Seconds of each step; the i-th of both have the same tokens in the cache."""

    engine: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """What the engine takes more, as a share of the bare loop's median."""
        return median(self.engine) / median(self.bare) - 1


def measure(model: Decoder, *, num_seqs: int) -> Serial:
    """Asserts that both make the same tokens."""
    rng = random.Random(1)
    prompts = [make_prompt(rng, NUM_PROMPT) for _ in range(num_seqs)]
    num_tokens = NUM_WARM + NUM_STEPS + 2
    bare = BareLoop(model, prompts, max_len=NUM_PROMPT + num_tokens)
    engine = make_engine(model)
    for i, prompt in enumerate(prompts):
        engine.add(make_sequence(str(i), prompt, max_tokens=num_tokens))
    sampled = [output.token_id for output in engine.step()]  # the prompts are one step
    serial = Serial()
    for number in range(NUM_WARM + NUM_STEPS):
        began = time.perf_counter()
        expected = bare.step()
        bare_seconds = time.perf_counter() - began
        assert sampled == expected, f"step {number}: the engine's {sampled} are not the loop's {expected}"
        began = time.perf_counter()
        outputs = engine.step()
        engine_seconds = time.perf_counter() - began
        sampled = [output.token_id for output in outputs]
        if number >= NUM_WARM:
            serial.bare.append(bare_seconds)
            serial.engine.append(engine_seconds)
    return serial
