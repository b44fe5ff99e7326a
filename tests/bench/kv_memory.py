"""How much of the KV memory that sequences hold has a token in it, on a mixed workload of long and short ones."""

import random
import time
from dataclasses import dataclass

from tests.bench.null_runner import VOCAB_SIZE, null_engine
from workers.engine.engine import Engine
from workers.engine.sequence import SamplingParams, Sequence

NUM_SEQUENCES = 600
SHORTEST, LONGEST = 10, 4000  # tokens of a prompt and its output together
NUM_SLOTS = 131_072
MAX_MODEL_LEN = 4096


@dataclass
class KVMemory:
    """Sums over the steps of one run. While somebody waits, the cache is as full as it gets."""

    num_tokens: int = 0  # computed ones of running sequences
    num_held: int = 0  # slots of the blocks in their tables
    num_promised: int = 0  # slots kept for the rest of prompts that are being computed
    num_full_steps: int = 0  # steps with somebody waiting
    num_running: int = 0  # sequences, in those
    num_preemptions: int = 0

    @property
    def share(self) -> float:
        return self.num_tokens / self.num_held

    @property
    def share_with_promised(self) -> float:
        return self.num_tokens / (self.num_held + self.num_promised)

    @property
    def mean_running(self) -> float:
        return self.num_running / self.num_full_steps

    @property
    def num_contiguous(self) -> int:
        """Sequences that fit where each gets the room of the longest."""
        return NUM_SLOTS // MAX_MODEL_LEN


def measure(block_size: int) -> KVMemory:
    """All sequences are there from the start; the runner computes nothing."""
    engine, _ = null_engine(
        max_num_seqs=512, token_budget=1024, num_blocks=NUM_SLOTS // block_size, block_size=block_size
    )
    for sequence in make_sequences():
        engine.add(sequence)
    memory = KVMemory()
    while engine.has_work:
        engine.step()
        _count(memory, engine, block_size)
    memory.num_preemptions = engine.scheduler.preemption.num
    return memory


def make_sequences() -> list[Sequence]:
    """Lengths spread evenly over their logarithm, so that half are under 200 tokens; 20 to 80 % is prompt."""
    rng = random.Random(1)
    sequences = []
    for i in range(NUM_SEQUENCES):
        num_tokens = round(SHORTEST * (LONGEST / SHORTEST) ** rng.random())
        num_prompt = max(1, round(num_tokens * rng.uniform(0.2, 0.8)))
        params = SamplingParams(max_tokens=num_tokens - num_prompt, temperature=0.0)
        prompt = rng.choices(range(VOCAB_SIZE), k=num_prompt)
        sequences.append(Sequence(str(i), prompt, params, tier=1, arrival=time.time()))
    return sequences


def _count(memory: KVMemory, engine: Engine, block_size: int) -> None:
    running = engine.scheduler.running
    memory.num_tokens += sum(s.num_computed_tokens for s in running)
    memory.num_held += sum(len(s.block_table) for s in running) * block_size
    memory.num_promised += sum(s.num_reserved_blocks for s in running) * block_size
    if engine.num_waiting:
        memory.num_full_steps += 1
        memory.num_running += len(running)
