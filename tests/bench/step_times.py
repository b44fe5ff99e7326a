"""What a step costs beside the computing: planning it, its batch, and taking in what it gave."""

import random
import time
from enum import Enum
from itertools import count

from tests.bench.null_runner import VOCAB_SIZE, NullRunner, null_engine
from workers.engine.engine import Engine
from workers.engine.sequence import SamplingParams, Sequence

NUM_WAITING = 256
NUM_STEPS = 400
BLOCKS_PER_SEQ = 64  # more than any of these sequences comes to need
LONG_AGO = 100.0  # seconds of waiting after which every tier has aged to the top


class Load(Enum):
    """Who runs and who waits while steps are timed."""

    STEADY = "all of one tier, nobody ends"
    MIXED = "all tiers wait, the running ones are of the low tier and too old to give way; nobody ends"
    TURNOVER = "all of one tier, in every step one ends and the next starts"


class StepTimes:
    """Steps of an engine with `num_running` seats taken and 256 sequences waiting for one."""

    def __init__(self, num_running: int, load: Load) -> None:
        self._num_running = num_running
        self._load = load
        self._ids = count()
        self._random = random.Random(num_running)
        self._engine: Engine
        self._runner: NullRunner
        self._engine, self._runner = null_engine(
            max_num_seqs=num_running, token_budget=num_running + 512, num_blocks=num_running * BLOCKS_PER_SEQ
        )

    def measure(self) -> list[float]:
        """Seconds of each step, less what the runner took."""
        for i in range(self._num_running):
            self._add(tier=1 if self._load is not Load.MIXED else 2, waited=LONG_AGO, max_tokens=self._num_tokens(i))
        while any(s.num_missing_tokens > 1 for s in self._engine.scheduler.running) or self._engine.num_waiting:
            self._engine.step()
        return [self._step() for _ in range(NUM_STEPS)]

    def _step(self) -> float:
        while self._engine.num_waiting < NUM_WAITING:
            self._add(tier=next(self._ids) % 3 if self._load is Load.MIXED else 1, max_tokens=self._num_running)
        self._runner.seconds = 0.0
        began = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - began - self._runner.seconds

    def _num_tokens(self, i: int) -> int:
        """Of the i-th to start: whole rounds apart, so that from then on one ends in each step."""
        return self._num_running + i + 1 if self._load is Load.TURNOVER else BLOCKS_PER_SEQ * 8

    def _add(self, *, tier: int, max_tokens: int, waited: float = 0.0) -> None:
        prompt = self._random.choices(range(VOCAB_SIZE), k=self._random.randrange(50, 150))
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        arrival = time.time() - waited
        self._engine.add(Sequence(str(next(self._ids)), prompt, params, tier=tier, arrival=arrival))
