"""A runner that computes nothing, so that what is measured is what the engine does around a step."""

import time

from workers.engine.batch import Batch
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.outputs import Computed, Sample

VOCAB_SIZE = 50
SAMPLE = Sample(3)


class NullRunner:
    """Gives every sequence the same token at once, and counts the time that even this takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, batch: Batch) -> Computed:
        began = time.perf_counter()
        computed = Computed([SAMPLE] * len(batch.sampled))
        self.seconds += time.perf_counter() - began
        return computed


def null_engine(
    *, max_num_seqs: int, token_budget: int, num_blocks: int, block_size: int = 16, is_caching: bool = True
) -> tuple[Engine, NullRunner]:
    """An engine of that size, for sequences of up to 4,096 tokens, and its runner."""
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        max_model_len=4096,
        block_size=block_size,
        num_blocks=num_blocks,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset(),
        aging_threshold_seconds=30.0,
        aging_boost=0.5,
        is_caching=is_caching,
    )
    runner = NullRunner()
    return Engine(config, runner), runner
