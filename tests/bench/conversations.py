"""Conversations of several turns, each prompt the whole of what was said before: what the prefix cache is for."""

import random
import time
from dataclasses import dataclass, field

from tests.bench.engine_world import make_prompt, make_sequence
from workers.engine.engine import Engine

NUM_CONVERSATIONS = 8
NUM_TURNS = 4
NUM_SYSTEM, NUM_USER, NUM_OUTPUT = 128, 96, 32  # tokens: shared by all, new in every turn, and answered


@dataclass
class Talk:
    """What one round of all conversations gave."""

    first_token_seconds: list[float] = field(default_factory=list)  # of each turn, from its submit
    answers: dict[str, list[int]] = field(default_factory=dict)  # by sequence id
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.answers.values())) / self.seconds

    @property
    def shared(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens


class Conversations:
    """All at once on one engine; a turn follows as soon as the one before is answered."""

    def __init__(self, engine: Engine, *, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._said = {str(i): list[int]() for i in range(NUM_CONVERSATIONS)}  # by conversation
        self._asked_at: dict[str, float] = {}  # by sequence id, until its first token
        self._talk = Talk()

    def run(self) -> Talk:
        began = time.perf_counter()
        system = make_prompt(random.Random(self._seed), NUM_SYSTEM)
        for name, said in self._said.items():
            said.extend(system)
            self._ask(name, turn=0)
        while self._engine.has_work:
            for output in self._engine.step():
                self._hear(output.sequence_id, output.token_id, output.num_cached_tokens)
                if output.finish_reason is not None:
                    name, _, turn = output.sequence_id.partition(".")
                    if int(turn) + 1 < NUM_TURNS:
                        self._ask(name, turn=int(turn) + 1)
        self._talk.seconds = time.perf_counter() - began
        return self._talk

    def _ask(self, name: str, *, turn: int) -> None:
        # Not from one stream of random numbers: who is answered first must not change what is asked.
        rng = random.Random(f"{self._seed}.{name}.{turn}")
        self._said[name].extend(make_prompt(rng, NUM_USER))
        id = f"{name}.{turn}"
        self._talk.num_prompt_tokens += len(self._said[name])
        self._asked_at[id] = time.perf_counter()
        self._engine.add(make_sequence(id, self._said[name], max_tokens=NUM_OUTPUT))

    def _hear(self, id: str, token_id: int, num_cached_tokens: int) -> None:
        asked_at = self._asked_at.pop(id, None)
        if asked_at is not None:
            self._talk.first_token_seconds.append(time.perf_counter() - asked_at)
            self._talk.num_cached_tokens += num_cached_tokens
        self._talk.answers.setdefault(id, []).append(token_id)
        self._said[id.partition(".")[0]].append(token_id)
