"""Chooses what the next step computes: who runs, who waits, who gives way. Pure Python, no tensors.

There is no prefill phase and no decode phase: every sequence has `num_computed_tokens` catching up with `num_tokens`.
"""

import heapq
from collections.abc import Iterable

from workers.engine.admission import Door
from workers.engine.batch import Batch
from workers.engine.block_manager import BlockManager
from workers.engine.config import EngineConfig
from workers.engine.flights import Flights
from workers.engine.plan import Plan, can_fly, is_unforked
from workers.engine.policy import Policy
from workers.engine.preemption import Preemption, members_of
from workers.engine.sequence import Sequence, Status
from workers.engine.step_time import StepTime

MAX_PROMPT_ROWS = 64  # logits of a prompt in one step: each row has the whole vocabulary
MAX_LOOKED_PAST = 16  # waiting sequences that do not fit, and are looked past in one step


class Scheduler:
    """Owns the waiting and the running sequences, their status, and the batches of the steps in flight.

    add -> WAITING -- admit --> RUNNING -- remove --> FINISHED
              ^                    |
              +----- preempt ------+
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager, policy: Policy, step_time: StepTime) -> None:
        self.config = config
        self.blocks = blocks
        self.policy = policy
        self.step_time = step_time
        self.preemption = Preemption(config, blocks, policy, step_time)
        self.waiting: list[Sequence] = []  # in no order; ranked when there is a seat to give
        self.running: list[Sequence] = []  # by rank as of the last admission; the tail gives way first
        self._max_model_len = config.max_model_len
        self._door = Door()
        self._flights = Flights(blocks, config.block_size)
        # Whether the last batch's rows are all there is to plan: nobody came or went, or may take another's place.
        self._is_settled = False

    @property
    def is_in_flight(self) -> bool:
        return bool(self._flights)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self._is_settled = False

    def schedule(self, now: float) -> Batch | None:
        """The next step, under one token budget: single tokens first, then chunks of running and of new sequences.

        `now` is Unix seconds. While a step is in flight, the next is planned as if it were done; None says that this
        cannot be, as somebody must give way first. Otherwise the batch is empty only when there is no work.
        """
        if self._is_settled and (again := self._flights.repeat()) is not None:
            return again
        is_closed = False
        beneficiary = self.preemption.beneficiary(self.waiting, self.running, self.num_seats, now)
        if beneficiary is not None:
            if self.is_in_flight:
                return None
            self._make_way(beneficiary, now)
            is_closed = True
        plan = Plan(self.config.token_budget, self.step_time, self.config.target_itl_ms)
        is_short = self._plan_decodes(plan, now)
        plan.keep_target(len(self.running) - len(plan.sequences) + min(len(self.waiting), max(0, self.num_seats())))
        is_short = self._plan_chunks(plan, now) or is_short
        if is_short and self.is_in_flight:
            return None
        # What a victim gave up is its beneficiary's, not a newcomer's.
        is_settled = not is_closed and not is_short and self._admit(plan, now)
        batch = self._flights.take_off(plan)
        self._is_settled = is_settled and self._has_settled(batch, now)
        return batch

    def retire(self, *, is_good: bool = True) -> None:
        """Land the oldest step in flight: what it computed is in the cache from now on, unless it failed."""
        self._is_settled = self._is_settled and is_good
        batch = self._flights.land(is_good=is_good)
        if is_good:
            self._fork_prompts(batch.sequences)

    def redo(self, failed: Batch, sequences: list[Sequence], num_new_tokens: list[int]) -> Batch:
        """A step that computes again, for some of the sequences of a failed one, what that was to compute."""
        self._is_settled = False
        return self._flights.redo(failed, sequences, num_new_tokens)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free what it holds; once. What is in flight is freed when it lands."""
        assert sequence.status is not Status.FINISHED, sequence.id
        self._is_settled = False
        for sequences in (self.running, self.waiting):
            if sequence in sequences:  # neither: it was to fork from its group's leader
                sequences.remove(sequence)
        if sequence.group is not None:
            sequence.group.living.remove(sequence)
        sequence.status = Status.FINISHED
        self._flights.release(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on from what is computed of `parent`, in the same blocks until it writes."""
        self.blocks.fork(parent, child)
        child.num_cached_tokens = parent.num_cached_tokens
        child.is_prompt_told = True  # by the leader
        child.status = Status.RUNNING
        self.running.append(child)
        self._is_settled = False

    def num_seats(self) -> int:
        """Seats that nobody sits in."""
        return self.config.max_num_seqs - sum(sequence.seats for sequence in self.running)

    def check_invariants(self) -> None:
        """Assert what holds between two steps."""
        assert self.num_seats() >= 0
        for sequence in self.running:
            is_beam = sequence.params.num_beams > 1  # which waits for its siblings when it has all its tokens
            assert sequence.status is Status.RUNNING and sequence.num_computed_tokens < sequence.num_tokens + is_beam
            assert sequence.num_started_tokens <= len(sequence.block_table) * self.config.block_size
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING and sequence.num_computed_tokens == 0
            assert not sequence.block_table and not sequence.num_reserved_blocks
        self.blocks.check_invariants([*self.running, *self._flights.leaving])

    def _plan_decodes(self, plan: Plan, now: float) -> bool:
        """Plan every running sequence that lacks one token, the best first; whether that is as far as this step gets.

        It is when somebody had to give way for another: then nobody is to start. In flight nobody can.
        """
        num_before = self.preemption.num
        for sequence in [
            s for s in self.running if s.num_missing_tokens == 1 and can_fly(s, self.config.max_model_len)
        ]:
            if self._secure(plan, sequence, 1, now):
                plan.take(sequence, 1)
            elif self.is_in_flight:
                return True
        return self.preemption.num > num_before

    def _plan_chunks(self, plan: Plan, now: float) -> bool:
        """The same for those that lack more."""
        num_before = self.preemption.num
        for sequence in [s for s in self.running if s.num_missing_tokens > 1 and can_fly(s, self._max_model_len)]:
            if sequence.status is Status.RUNNING and not self._plan_chunk(plan, sequence, now) and self.is_in_flight:
                return True
        return self.preemption.num > num_before

    def _plan_chunk(self, plan: Plan, sequence: Sequence, now: float) -> bool:
        """Plan as many of the sequence's missing tokens as budget and target allow; False when it has no block."""
        num_missing = sequence.num_missing_tokens
        if is_unforked(sequence):  # its choices go on from the end of the prompt
            num_missing = sequence.num_prompt_tokens - sequence.num_started_tokens
        if sequence.wants_prompt_logprobs:
            num_missing = min(num_missing, MAX_PROMPT_ROWS)
        num_new = plan.most(sequence.num_started_tokens, num_missing, self.config.block_size)
        if num_new <= 0:
            return True
        if not self._secure(plan, sequence, num_new, now):
            return False
        plan.take(sequence, num_new)
        return True

    def _secure(self, plan: Plan, sequence: Sequence, num_new: int, now: float) -> bool:
        """Give the sequence the blocks of its next tokens, from whoever must give way; False when it has to wait.

        Prompts have theirs reserved. In flight nobody gives way: then False says that the step must land first.
        """
        if sequence.status is Status.RUNNING and self._has_slots(sequence, num_new):
            return True
        while sequence.status is Status.RUNNING and not self._allocate(sequence, num_new):
            victim = None if self.is_in_flight else self.preemption.victim(self.running, plan)
            if victim is None:
                return False
            self._preempt(victim, now)
        return sequence.status is Status.RUNNING

    def _has_slots(self, sequence: Sequence, num_new: int) -> bool:
        """Whether its own blocks have the room, as they mostly do; what a fork may share is not asked here."""
        num_slots = len(sequence.block_table) * self.config.block_size
        return sequence.group is None and sequence.num_started_tokens + num_new <= num_slots

    def _allocate(self, sequence: Sequence, num_new: int) -> bool:
        return self.blocks.allocate(sequence, sequence.num_started_tokens + num_new)

    def _has_settled(self, batch: Batch, now: float) -> bool:
        """Whether the next step is this one's rows again, unless somebody comes or goes."""
        is_all = batch.is_decode and 0 < len(batch) == len(self.running)
        return is_all and not self.preemption.is_disputed(self.waiting, self.running, now)

    # Giving way

    def _make_way(self, best: Sequence, now: float) -> None:
        """Take seat and blocks for `best` from the tail, no more than it needs, and start it."""
        for victim in self.preemption.may_give_way(self.running, best.tier, now):
            if self.preemption.has_room(best, self.num_seats()):
                break
            if victim.status is Status.RUNNING:  # else it went with its group
                self._preempt(victim, now)
        self._start(best)
        self.running.sort(key=lambda s: self.policy.rank(s, now))  # it is not the tail

    def _preempt(self, sequence: Sequence, now: float) -> None:
        """Back to waiting without any blocks, with its group; its output tokens are kept."""
        members = members_of(sequence)
        to_host = self.preemption.choose_swap(members)
        for member in members:
            self.running.remove(member)
            self.blocks.preempt(member, to_host=to_host)
            member.num_computed_tokens = 0
            member.prompt_logprobs.clear()
            member.pooled.clear()
            member.status = Status.WAITING
        first = members[0]
        if first.group is not None:
            first.group.is_forked = False
        first.num_preemptions = 1 + max(member.num_preemptions for member in members)
        first.preempted_at = now
        self.waiting.append(first)

    # Starting

    def _admit(self, plan: Plan, now: float) -> bool:
        """Start waiting sequences, the best first, looking past some that do not fit yet.

        Whether those that still wait have no seat or no room; else one is to start as soon as its prefix is there.
        """
        num_seats = self.num_seats() if self.waiting else 0
        if num_seats <= 0 or plan.budget <= 0:
            return True
        is_coming = False
        passed_over: list[Sequence] = []
        for sequence in self._best_waiting(num_seats + MAX_LOOKED_PAST, now):
            if plan.budget <= 0 or num_seats <= 0:
                break
            if self.blocks.is_being_computed(sequence) or self.blocks.prefetch(sequence):
                is_coming = True
                continue  # a step or two later its prefix is there to share
            if self._start(sequence):
                num_seats -= sequence.seats
                self._plan_chunk(plan, sequence, now)
                self._door.count(passed_over, now)
            elif self._door.is_closed_by(sequence, now):
                break
            else:
                passed_over.append(sequence)
        self.running.sort(key=lambda s: self.policy.rank(s, now))
        return not is_coming

    def _best_waiting(self, limit: int, now: float) -> list[Sequence]:
        return heapq.nsmallest(limit, self.waiting, key=lambda s: self.policy.rank(s, now))

    def _start(self, sequence: Sequence) -> bool:
        """Move a waiting sequence to running if all its tokens fit, beside a margin for those that already run."""
        leave = self._door.margin(self.config, self.blocks.num_available) if self.running else 0
        if self.num_seats() < sequence.seats or not self.blocks.admit(sequence, leave=leave):
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        sequence.num_passed_over, sequence.passed_over_since, sequence.preempted_at = 0, None, None
        return True

    def _fork_prompts(self, sequences: Iterable[Sequence]) -> None:
        """Let the other choices go on from prompts that have just been computed whole."""
        for leader in sequences:
            if not is_unforked(leader) or leader.status is not Status.RUNNING:
                continue
            if leader.num_computed_tokens < leader.num_prompt_tokens:
                continue
            assert leader.group is not None
            for choice in leader.group.living:
                if choice is not leader:
                    self.fork(leader, choice)
            leader.group.is_forked = True
