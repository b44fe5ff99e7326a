"""How soon a sequence that had to give way goes on: computed again, or brought back from host memory."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.engine_world import BLOCK_SIZE, make_engine, make_prompt, make_sequence
from workers.engine.engine import Engine
from workers.engine.runner import ModelRunner
from workers.models.decoder import Decoder

NUM_ROUNDS = 5
NUM_VICTIM, NUM_BENEFICIARY = 1000, 1040  # prompt tokens; the cache has room for one of them, and not a block more
NUM_BEFORE, NUM_AFTER = 24, 4  # output tokens of the victim
NUM_BLOCKS = -(-(NUM_BENEFICIARY + 2) // BLOCK_SIZE)


@dataclass(frozen=True)
class Preemption:
    """What it took in each round, in seconds."""

    resume: list[float]  # from the beneficiary's last token to the victim's next
    moving: float  # for copies there and back, mean of a round
    bytes_moved: float  # mean of a round, there and back


def measure(model: Decoder, *, is_swap: bool) -> Preemption:
    """One sequence of the low tier, and one of the high tier that takes all its blocks; then both again."""
    engine = make_engine(model, num_blocks=NUM_BLOCKS, host_blocks=4 * NUM_BLOCKS if is_swap else 0)
    rng = random.Random(1)
    resume = [_round(engine, rng, number) for number in range(NUM_ROUNDS)]
    assert engine.scheduler.preemption.num == NUM_ROUNDS
    assert bool(engine.scheduler.blocks.stats.loaded_blocks) == is_swap, "it resumed in the other way"
    assert isinstance(engine.runner, ModelRunner)
    stats = engine.runner.mover.stats
    return Preemption(resume, stats.seconds / NUM_ROUNDS, (stats.offloaded_bytes + stats.loaded_bytes) / NUM_ROUNDS)


def _round(engine: Engine, rng: random.Random, number: int) -> float:
    victim, beneficiary = f"victim.{number}", f"beneficiary.{number}"
    num_output = NUM_BEFORE + NUM_AFTER
    engine.add(make_sequence(victim, make_prompt(rng, NUM_VICTIM), max_tokens=num_output, tier=2))
    tokens = _tokens(engine)
    for _ in range(NUM_BEFORE):
        assert next(tokens) == victim
    engine.add(make_sequence(beneficiary, make_prompt(rng, NUM_BENEFICIARY), max_tokens=2, tier=0))
    for _ in range(2):
        assert next(tokens) == beneficiary
    began = time.perf_counter()
    assert next(tokens) == victim
    seconds = time.perf_counter() - began
    assert len(list(tokens)) == NUM_AFTER - 1
    return seconds


def _tokens(engine: Engine) -> Iterator[str]:
    """Whose each token is, until there is no work."""
    while engine.has_work:
        for output in engine.step():
            yield output.sequence_id
