"""A block manager with tiers below it, and a memory that does what its moves say."""

from tests.workers.engine.fakes import make_sequence
from tests.workers.engine.memory import Memory
from workers.engine.block_manager import BlockManager
from workers.engine.host_tier import HostTier
from workers.engine.moves import Moves
from workers.engine.sequence import Sequence


class World:
    """Four blocks of four slots, eight below them, unless told otherwise."""

    def __init__(self, num_blocks: int = 4, num_slots: int = 8) -> None:
        self.memory = Memory(num_blocks, 4, num_slots)
        self.host = HostTier(num_slots, disk=self.memory)
        self.blocks = BlockManager(num_blocks, 4, host=self.host)
        self.running: list[Sequence] = []

    def compute(self, sequence: Sequence) -> Moves:
        """One step that computes the whole of a running sequence, on what was right until then; its moves."""
        assert self.blocks.allocate(sequence, sequence.num_tokens)
        moves = self.blocks.take_moves()
        self.memory.execute(moves)
        self.memory.check(sequence, sequence.block_table, sequence.num_computed_tokens)
        self.memory.compute(
            sequence, sequence.block_table, sequence.num_computed_tokens, sequence.num_tokens, is_good=True
        )
        sequence.num_computed_tokens = sequence.num_tokens
        self.blocks.land(moves)
        self.blocks.publish(sequence)
        self.blocks.check_invariants(self.running)
        return moves

    def admit(self, id: str, first: int, num_tokens: int) -> Sequence:
        sequence = make_sequence(id, range(first, first + num_tokens))
        assert self.blocks.admit(sequence, leave=0)
        self.running.append(sequence)
        return sequence

    def release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence)

    def pass_through(self, id: str, first: int, num_tokens: int) -> tuple[int, Moves]:
        """A sequence that comes, computes and goes: how many tokens it found, and its moves."""
        sequence = self.admit(id, first, num_tokens)
        num_found = sequence.num_computed_tokens
        moves = self.compute(sequence)
        self.release(sequence)
        return num_found, moves
