"""A model that computes next to nothing, so that what is measured is the queue: a real checkpoint of one tiny layer."""

import time
from itertools import count
from pathlib import Path

from db.settings import Settings
from tests.checkpoints import make_checkpoint
from workers.engine.sequence import SamplingParams, Sequence
from workers.loading import load

NAME = "null"
PROMPT = [5, 80, 33, 7]
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def make_null_checkpoint(directory: Path) -> Path:
    """The checkpoint, in the same files as any other; workers load it as they load any other."""
    return make_checkpoint(directory, **SHAPE)


class DirectEngine:
    """The engine that a worker has, without a worker around it."""

    def __init__(self, settings: Settings) -> None:
        self._engine = load(settings, on_card=lambda card: None, clock=time.time).engine
        self._numbers = count()

    def first_token_seconds(self) -> float:
        """From the prompt to its first token on an idle engine."""
        began = time.perf_counter()
        params = SamplingParams(max_tokens=1, temperature=0.0, seed=0, ignore_eos=True)
        self._engine.add(Sequence(str(next(self._numbers)), PROMPT, params, tier=1, arrival=time.time()))
        while not self._engine.step():
            pass
        return time.perf_counter() - began
