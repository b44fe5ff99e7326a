"""Chooses what the next step computes: who runs, who waits, who gives way. Pure Python, no tensors.

There is no prefill phase and no decode phase: every sequence has `num_computed_tokens` catching up with `num_tokens`.
"""

import heapq
from dataclasses import dataclass, field

from workers.engine.batch import Batch, build_batch
from workers.engine.block_manager import BlockManager
from workers.engine.config import EngineConfig
from workers.engine.policy import rank
from workers.engine.sequence import Sequence, Status

MAX_PREEMPTIONS = 3  # of one sequence; from then on others give way first
MAX_PASSED_OVER = 16  # admissions past a waiting sequence that does not fit yet
MAX_PASSED_OVER_SECONDS = 2.0  # and how long they may go on


@dataclass(slots=True)
class _Plan:
    """The step in the making: who computes how many tokens, and what is left of the budget."""

    budget: int
    sequences: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)

    def take(self, sequence: Sequence, num_new: int) -> None:
        self.sequences.append(sequence)
        self.num_new_tokens.append(num_new)
        self.budget -= num_new


class Scheduler:
    """Owns the waiting and the running sequences, their status, and the batch of the step in flight.

    add -> WAITING -- admit --> RUNNING -- remove --> FINISHED
              ^                    |
              +----- preempt ------+
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.blocks = BlockManager(config.num_blocks, config.block_size)
        self.waiting: list[Sequence] = []  # in no order; ranked when there is a seat to give
        self.running: list[Sequence] = []  # by rank as of the last admission; the tail gives way first
        self.is_in_flight = False  # between `schedule` and `retire`
        self._batch = Batch()  # of the step in flight, else of the last one

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self, now: float) -> Batch:
        """The next step, under one token budget: single tokens first, then chunks of running and of new sequences.

        `now` is Unix seconds. The batch is empty only when there is no work. Nothing is in flight here, so blocks that
        a sequence gives up are free at once.
        """
        assert not self.is_in_flight
        plan = _Plan(self.config.token_budget)
        is_short = self._plan_decodes(plan)
        self._plan_chunks(plan)
        if not is_short:  # Else the blocks that a victim gave up are its beneficiary's, not a newcomer's.
            self._admit(plan, now)
        if self._batch.is_advance_to(plan.sequences, plan.num_new_tokens):
            self._batch.advance(self.config.block_size)
        else:
            self._batch = build_batch(plan.sequences, plan.num_new_tokens, self.config.block_size)
        self.is_in_flight = bool(plan.sequences)
        return self._batch

    def retire(self) -> None:
        """Land the step in flight: what it computed is in the cache from now on."""
        assert self.is_in_flight
        for sequence, num_new in zip(self._batch.sequences, self._batch.num_new_tokens, strict=True):
            sequence.num_computed_tokens += num_new
        self.is_in_flight = False

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free what it holds; once, and never during a step."""
        assert not self.is_in_flight and sequence.status is not Status.FINISHED, sequence.id
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        self.blocks.release(sequence)
        sequence.status = Status.FINISHED

    def check_invariants(self) -> None:
        """Assert what holds between two steps."""
        assert len(self.running) <= self.config.max_num_seqs
        for sequence in self.running:
            assert sequence.status is Status.RUNNING and sequence.num_computed_tokens < sequence.num_tokens
            assert sequence.num_computed_tokens <= len(sequence.block_table) * self.config.block_size
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING and sequence.num_computed_tokens == 0
            assert not sequence.block_table and not sequence.num_reserved_blocks
        self.blocks.check_invariants(self.running)

    def _plan_decodes(self, plan: _Plan) -> bool:
        """Plan every running sequence that lacks one token, the best first; whether one had to give way for another."""
        is_short = False
        for sequence in [s for s in self.running if s.num_tokens - s.num_computed_tokens == 1]:
            while sequence.status is Status.RUNNING and not self.blocks.allocate(sequence, sequence.num_tokens):
                self._preempt(self._victim(plan))
                is_short = True
            if sequence.status is Status.RUNNING:
                plan.take(sequence, 1)
        return is_short

    def _plan_chunks(self, plan: _Plan) -> None:
        for sequence in self.running:
            if sequence.num_tokens - sequence.num_computed_tokens > 1:
                self._plan_chunk(plan, sequence)

    def _plan_chunk(self, plan: _Plan, sequence: Sequence) -> None:
        """Plan as many of the sequence's missing tokens as the budget allows."""
        end = min(sequence.num_tokens, sequence.num_computed_tokens + plan.budget)
        if end > sequence.num_computed_tokens:
            is_allocated = self.blocks.allocate(sequence, end)
            assert is_allocated, "all blocks of a prompt are reserved at admission"
            plan.take(sequence, end - sequence.num_computed_tokens)

    def _victim(self, plan: _Plan) -> Sequence:
        """The tail of the running sequences that have no part in this step yet; it may be the one in need itself."""
        candidates = [s for s in self.running if s not in plan.sequences]
        spared = [s for s in candidates if s.num_preemptions < MAX_PREEMPTIONS]
        return (spared or candidates)[-1]

    def _preempt(self, sequence: Sequence) -> None:
        """Back to waiting without any blocks; all its tokens are computed again, its output tokens are kept."""
        self.running.remove(sequence)
        self.blocks.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        sequence.status = Status.WAITING
        self.waiting.append(sequence)

    def _admit(self, plan: _Plan, now: float) -> None:
        """Start waiting sequences, the best first, looking past some that do not fit yet."""
        num_seats = self.config.max_num_seqs - len(self.running)
        if not self.waiting or not num_seats:
            return
        passed_over: list[Sequence] = []
        for sequence in self._best_waiting(num_seats + MAX_PASSED_OVER, now):
            if len(self.running) == self.config.max_num_seqs or not plan.budget:
                break
            if self._start(sequence):
                self._plan_chunk(plan, sequence)
                _count_pass(passed_over, now)
            elif _closes_door(sequence, now):
                break
            else:
                passed_over.append(sequence)
        self.running.sort(key=lambda s: rank(s, now, self.config))

    def _best_waiting(self, limit: int, now: float) -> list[Sequence]:
        return heapq.nsmallest(limit, self.waiting, key=lambda s: rank(s, now, self.config))

    def _start(self, sequence: Sequence) -> bool:
        """Move a waiting sequence to running if all its tokens fit, beside a margin for those that already run."""
        leave = self.config.num_watermark_blocks if self.running else 0
        if not self.blocks.reserve(sequence, leave=leave):
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        sequence.num_passed_over, sequence.passed_over_since = 0, None
        return True


def _count_pass(passed_over: list[Sequence], now: float) -> None:
    for sequence in passed_over:
        sequence.num_passed_over += 1
        if sequence.passed_over_since is None:
            sequence.passed_over_since = now


def _closes_door(sequence: Sequence, now: float) -> bool:
    """Whether a sequence that does not fit was passed over often or long enough that nobody may start before it."""
    since = sequence.passed_over_since
    is_overdue = since is not None and now - since >= MAX_PASSED_OVER_SECONDS
    return is_overdue or sequence.num_passed_over >= MAX_PASSED_OVER
