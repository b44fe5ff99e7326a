"""Who holds which block of the KV cache. Knows counts and ids, never tensors."""

from collections import deque
from collections.abc import Iterable

from workers.engine.sequence import Sequence


class BlockManager:
    """Hands out fixed runs of KV slots, each with a reference count, and keeps what admission promised.

    Every free block is available or reserved. A reservation is a number, not a set of blocks: a sequence is admitted
    with its whole prompt reserved, and takes the blocks one by one as its chunks run.

        [ referenced by block tables | reserved | available ]     sums to num_blocks
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_reserved = 0
        self._free = deque(range(num_blocks))  # least recently used first
        self._ref_counts = [0] * num_blocks

    @property
    def num_available(self) -> int:
        """Free blocks that nobody was promised."""
        return len(self._free) - self.num_reserved

    def reserve(self, sequence: Sequence, *, leave: int) -> bool:
        """Promise `sequence` blocks for all its tokens, if `leave` others stay available; else change nothing."""
        assert not sequence.block_table and not sequence.num_reserved_blocks, sequence.id
        num_needed = self._blocks_of(sequence.num_tokens)
        if num_needed + leave > self.num_available:
            return False
        sequence.num_reserved_blocks = num_needed
        self.num_reserved += num_needed
        return True

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens`, from the reservation first; else change nothing."""
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return True
        num_new = self._blocks_of(num_tokens) - len(sequence.block_table)
        num_promised = min(num_new, sequence.num_reserved_blocks)
        if num_new - num_promised > self.num_available:
            return False
        sequence.num_reserved_blocks -= num_promised
        self.num_reserved -= num_promised
        for _ in range(num_new):
            block_id = self._free.popleft()
            self._ref_counts[block_id] = 1
            sequence.block_table.append(block_id)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back everything `sequence` holds or was promised."""
        self.num_reserved -= sequence.num_reserved_blocks
        sequence.num_reserved_blocks = 0
        # The last block first: the head of a prompt, which others are likeliest to share, stays longest.
        for block_id in reversed(sequence.block_table):
            assert self._ref_counts[block_id] > 0, f"block {block_id} is released twice"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
        sequence.block_table.clear()

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Assert that counts, block tables and the free list of all living `sequences` agree."""
        counts = [0] * self.num_blocks
        num_reserved = 0
        for sequence in sequences:
            num_reserved += sequence.num_reserved_blocks
            for block_id in sequence.block_table:
                counts[block_id] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        assert sorted(self._free) == [i for i, count in enumerate(counts) if count == 0], "free list differs"
        assert num_reserved == self.num_reserved, "reservations do not add up"
        assert self.num_available >= 0, "more blocks are promised than free"

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
