"""`python -m tests.bench.step_bounds`: a step of the engine beside what the machine allows for it, by rows and context.

The bound is the longer of two times: weights and KV cache read once at the measured bandwidth, or all products at the
measured peak. It counts nothing else, and no machine reaches both at once.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

from tests.bench import machine
from tests.bench.quick import DIRECTORY
from tests.bench.speed.ceiling import Bounds, Ceiling, measure_ceiling
from tests.bench.speed.checkpoints import make_checkpoint
from tests.bench.speed.headrace import PRECISIONS, make_settings
from tests.bench.speed.shapes import SHAPES, Shape
from tests.bench.speed.table import markdown
from workers.engine.engine import Engine
from workers.engine.sequence import SamplingParams, Sequence
from workers.loading import load

RESULTS = Path(__file__).parent / "results" / "step_bounds.md"
DECODES = ((1, 128), (8, 128), (32, 128), (64, 128), (64, 256))  # running sequences, tokens that each has before
NUM_STEPS = 32
PROMPT = 512
NUM_PROMPTS = 8
CHANGES = {"prefix_cache": False, "kv_cache_tokens": 40_960}


@dataclass(frozen=True)
class Work:
    """What a step has to do: rows of a batch, and the tokens that all their queries look at."""

    what: str
    num_rows: int
    num_outputs: int
    num_read: int  # tokens of the KV cache
    num_pairs: int  # of queries and keys


def main() -> None:
    """Measure each precision, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["smollm-135m"])
    shapes = [SHAPES[name] for name in parser.parse_args().shapes]
    ceiling = measure_ceiling(os.cpu_count() or 1)
    assert ceiling is not None, "the bounds need gcc"
    parts = ["\n".join(f"- {line}" for line in [*machine.describe(), f"ceiling of all cores: {ceiling}"])]
    for shape in shapes:
        checkpoint = make_checkpoint(DIRECTORY / "checkpoints", shape)
        for precision in PRECISIONS:
            settings = make_settings(DIRECTORY / "data", checkpoint, precision).model_copy(update=CHANGES)
            engine = load(settings, on_card=lambda card: None, clock=time.time).engine
            lines = [_line(work, seconds, shape, precision, ceiling) for work, seconds in measure(engine)]
            engine.close()
            heading = ["step", "ms", "weights and KV read at the bandwidth, ms", "products at the peak, ms", "share"]
            parts += [f"## {shape.name}, {precision}", markdown(heading, lines)]
            print("\n".join(parts[-2:]), flush=True)
    RESULTS.write_text("\n\n".join(parts) + "\n")


def measure(engine: Engine) -> Iterator[tuple[Work, float]]:
    """Each kind of step, and its median seconds."""
    rng, ids = random.Random(1), count()

    def add(num_prompt: int, num_output: int) -> None:
        params = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
        prompt = [rng.randrange(300, 8000) for _ in range(num_prompt)]
        engine.add(Sequence(str(next(ids)), prompt, params, tier=1, arrival=time.time()))

    def step() -> float:
        began = time.perf_counter()
        engine.step()
        return time.perf_counter() - began

    for num_rows, num_context in DECODES:
        num_output = 2 * NUM_STEPS + num_context * num_rows // 64  # the last to begin finds the first still running
        for _ in range(num_rows):
            add(num_context, num_output)
        while engine.num_waiting or any(sequence.num_missing_tokens > 1 for sequence in engine.scheduler.running):
            step()
        seconds = [step() for _ in range(NUM_STEPS)]
        assert engine.num_running == num_rows, "all were to run to the end of the measurement"
        tokens = sum(sequence.num_tokens for sequence in engine.scheduler.running) - num_rows * NUM_STEPS // 2
        what = f"{num_rows} sequences of {tokens // num_rows:,}"
        yield Work(what, num_rows, num_rows, tokens, tokens), median(seconds)
        while engine.has_work:
            step()
    chunks = []
    for _ in range(NUM_PROMPTS):
        add(PROMPT, 1)
        chunks.append(step())
        assert not engine.has_work, "the prompt was to be one chunk"
    yield Work(f"a prompt of {PROMPT}", PROMPT, 1, PROMPT, PROMPT**2 // 2), median(chunks)


def _line(work: Work, seconds: float, shape: Shape, precision: str, ceiling: Ceiling) -> list[str]:
    weights = PRECISIONS[precision]
    bounds = Bounds(shape, weights, ceiling)
    reading = bounds.read_seconds(bounds.weight_bytes + work.num_read * bounds.kv_bytes)
    peak = ceiling.int8_gops if weights.is_int8 else ceiling.bf16_gflops
    products = 2 * (shape.layer_weights * work.num_rows + shape.head_weights * work.num_outputs) / peak / 1e9
    pairs = 2 * shape.num_layers * shape.num_heads * shape.head_dim * work.num_pairs
    computing = products + 2 * pairs / ceiling.bf16_gflops / 1e9
    share = max(reading, computing) / seconds
    return [work.what, *(f"{each * 1000:.2f}" for each in (seconds, reading, computing)), f"{share:.0%}"]


if __name__ == "__main__":
    main()
