"""Random life of a block manager in tiny worlds: whatever is found in the cache is what its tokens ask for."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workers.engine.fakes import make_params
from tests.workers.engine.memory import Memory
from workers.engine.block_manager import BlockManager
from workers.engine.eviction import PolicyName
from workers.engine.host_tier import HostTier
from workers.engine.moves import Moves
from workers.engine.sequence import Sequence

BLOCK_SIZE = 2
MAX_IN_FLIGHT = 2

PROMPTS = [[0] * 9, [0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9, [1, 1, 0, 0, 0, 0, 0, 0, 0]]
prompts = st.builds(lambda prompt, length: prompt[:length], st.sampled_from(PROMPTS), st.integers(1, 9))


@dataclass
class Flight:
    """A step between its planning and its retirement: what each sequence computes, with its block table of then."""

    moves: Moves
    rows: list[tuple[Sequence, list[int], int, int]] = field(default_factory=list)


class BlocksMachine(RuleBasedStateMachine):
    """Plays scheduler, runner and disk. Steps are planned up to two deep, and executed when they land, or not."""

    @initialize(
        num_blocks=st.integers(2, 7),
        num_slots=st.sampled_from([0, 2, 5, 9]),
        policy=st.sampled_from(["lru", "frequency"]),
    )
    def start(self, num_blocks: int, num_slots: int, policy: PolicyName) -> None:
        self.memory = Memory(num_blocks, BLOCK_SIZE, num_slots)
        self.host = HostTier(num_slots, policy=policy, disk=self.memory)
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE, host=self.host)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.leaving: list[Sequence] = []
        self.promised: dict[Sequence, int] = {}  # tokens that a sequence must get blocks for, as it was admitted
        self.flights: deque[Flight] = deque()
        self.num_added = 0

    def make(self, token_ids: list[int], salt: bytes) -> Sequence:
        self.num_added += 1
        sequence = Sequence(f"s{self.num_added}", token_ids, make_params(), tier=1, arrival=0)
        sequence.salt = salt
        return sequence

    @rule(token_ids=prompts, salt=st.sampled_from([b"", b"", b"", b"mine"]))
    def add(self, token_ids: list[int], salt: bytes) -> None:
        self.waiting.append(self.make(token_ids, salt))

    @rule(visits=st.lists(prompts, min_size=1, max_size=5), num_steps=st.integers(1, 2), forks=st.booleans())
    def come_and_go(self, visits: list[list[int]], num_steps: int, forks: bool) -> None:
        """What usually happens: sequences come, everybody runs for some steps without a fault, and they go."""
        for token_ids in visits:
            sequence = self.make(token_ids, b"")
            self.waiting.append(sequence)
            self.run_steps(num_steps)
            if forks and sequence in self.running:
                self.fork_child(sequence, sequence.num_computed_tokens, 1)
                self.run_steps(1)
            self.end(sequence)

    def run_steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            while self.memory.reading:
                self.memory.end_read(is_good=True)
            for each in list(self.waiting):
                self.try_to_admit(each, leave=0, is_patient=True)
            self.take_off(9)
            while self.flights:
                self.land("good", 0)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), leave=st.integers(0, 2), is_patient=st.booleans())
    def admit(self, data: st.DataObject, leave: int, is_patient: bool) -> None:
        self.try_to_admit(data.draw(st.sampled_from(self.waiting)), leave=leave, is_patient=is_patient)

    def try_to_admit(self, sequence: Sequence, *, leave: int, is_patient: bool) -> None:
        if self.blocks.prefetch(sequence):
            assert self.memory.reading or self.flights, "it waits for nothing"
            if is_patient:
                return
        if self.blocks.is_being_computed(sequence):
            assert self.running or self.leaving
            if is_patient:
                return
        num_available, num_needed = self.blocks.num_available, -(-sequence.num_tokens // BLOCK_SIZE)
        was_admitted = self.blocks.admit(sequence, leave=leave)
        if not was_admitted:
            assert self.blocks.num_available == num_available < num_needed + leave
            assert not sequence.block_table and not sequence.num_computed_tokens
            return
        assert self.blocks.num_available >= leave
        assert sequence.num_computed_tokens < sequence.num_tokens
        assert sequence.num_computed_tokens == len(sequence.block_table) * BLOCK_SIZE
        assert len(sequence.block_table) + sequence.num_reserved_blocks == num_needed
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.promised[sequence] = sequence.num_tokens

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_new=st.integers(1, 5))
    def allocate(self, data: st.DataObject, num_new: int) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        end = min(sequence.num_tokens, sequence.num_started_tokens + num_new)
        before, num_available = list(sequence.block_table), self.blocks.num_available
        if not self.blocks.allocate(sequence, end):
            assert (sequence.block_table, self.blocks.num_available) == (before, num_available)
            assert end > self.promised.get(sequence, 0), "a promise is broken"

    @rule(num_new=st.integers(1, 5))
    def take_off(self, num_new: int) -> None:
        """Every running sequence that can be given something computes it."""
        if len(self.flights) == MAX_IN_FLIGHT:
            return
        rows = []
        for sequence in self.running:
            start = sequence.num_started_tokens
            end = min(start + num_new, sequence.num_tokens)
            if end > start and self.blocks.allocate(sequence, end):
                rows.append((sequence, list(sequence.block_table), start, end))
                sequence.num_flying_tokens += end - start
        if rows:
            self.flights.append(Flight(self.blocks.take_moves(), rows))

    @precondition(lambda self: self.flights)
    @rule(fate=st.sampled_from(["good", "good", "good", "moves fail", "computing fails"]), token=st.integers(0, 1))
    def land(self, fate: str, token: int) -> None:
        flight = self.flights.popleft()
        if fate != "moves fail":
            self.memory.execute(flight.moves)
        self.blocks.land(flight.moves)
        for row in flight.rows:
            self.retire(*row, fate=fate, token=token)

    def retire(
        self, sequence: Sequence, block_table: list[int], start: int, end: int, *, fate: str, token: int
    ) -> None:
        sequence.num_flying_tokens -= end - start
        if sequence not in self.leaving and fate != "moves fail":
            self.memory.check(sequence, block_table, start)
        if fate != "moves fail":
            self.memory.compute(sequence, block_table, start, end, is_good=fate == "good")
        if sequence in self.leaving:
            if not sequence.num_flying_tokens:
                self.leaving.remove(sequence)
                self.blocks.release(sequence)
        elif fate == "good":
            sequence.num_computed_tokens = end
            self.blocks.publish(sequence)
            if end == sequence.num_tokens:
                sequence.token_ids.append(token)
        else:
            self.end(sequence)

    @precondition(lambda self: any(sequence.num_computed_tokens for sequence in self.running))
    @rule(data=st.data(), token=st.integers(0, 1))
    def fork(self, data: st.DataObject, token: int) -> None:
        parent = data.draw(st.sampled_from([s for s in self.running if s.num_computed_tokens]))
        num_tokens = data.draw(st.integers(1, parent.num_computed_tokens))
        if num_tokens < parent.num_computed_tokens and num_tokens % BLOCK_SIZE:
            num_tokens = parent.num_computed_tokens
        self.fork_child(parent, num_tokens, token)

    def fork_child(self, parent: Sequence, num_tokens: int, token: int) -> None:
        child = self.make([*parent.token_ids[:num_tokens], token], parent.salt)
        num_available = self.blocks.num_available
        self.blocks.fork(parent, child, num_computed_tokens=num_tokens)
        assert self.blocks.num_available == num_available and not child.num_reserved_blocks
        self.running.append(child)
        self.promised.pop(parent, None)  # it may have to copy

    @precondition(lambda self: any(not sequence.num_flying_tokens for sequence in self.running))
    @rule(data=st.data(), to_host=st.booleans())
    def preempt(self, data: st.DataObject, to_host: bool) -> None:
        sequence = data.draw(st.sampled_from([s for s in self.running if not s.num_flying_tokens]))
        self.running.remove(sequence)
        self.promised.pop(sequence, None)
        self.blocks.preempt(sequence, to_host=to_host)
        sequence.num_computed_tokens = 0
        self.waiting.append(sequence)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), is_bad=st.booleans())
    def leave(self, data: st.DataObject, is_bad: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running + self.waiting))
        if is_bad:
            self.blocks.revoke(sequence)
        self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.promised.pop(sequence, None)
        if sequence.num_flying_tokens:
            self.leaving.append(sequence)
        else:
            self.blocks.release(sequence)

    @precondition(lambda self: self.memory.reading)
    @rule(is_good=st.booleans())
    def end_read(self, is_good: bool) -> None:
        self.memory.end_read(is_good=is_good)

    @invariant()
    def holds_together(self) -> None:
        if hasattr(self, "blocks"):
            self.blocks.check_invariants([*self.running, *self.leaving])

    def teardown(self) -> None:
        """When all have left, everything is free again, and what is cached is right."""
        if not hasattr(self, "blocks"):
            return
        while self.flights:
            self.land("good", 0)
        for sequence in self.running + self.waiting:
            self.end(sequence)
        while self.memory.reading:
            self.memory.end_read(is_good=True)
        self.host.poll()
        moves = self.blocks.take_moves()
        self.memory.execute(moves)
        self.blocks.land(moves)
        self.holds_together()
        assert self.blocks.num_available == self.blocks.num_blocks
        assert not self.memory.read


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
