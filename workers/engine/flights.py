"""Steps between planning and retiring: their batches, and the blocks that may not be freed before they land."""

from collections import deque

from workers.engine.batch import Batch, build_batch
from workers.engine.block_manager import BlockManager
from workers.engine.moves import Moves
from workers.engine.plan import Plan
from workers.engine.sequence import Sequence, Status


class Flights:
    """The batches in flight, the oldest first, and the last one, which the next may be advanced from.

    Says of each sequence how many tokens are in flight. Used by the scheduler only.
    """

    def __init__(self, blocks: BlockManager, block_size: int) -> None:
        self.leaving: set[Sequence] = set()  # ended while a step computes them: their blocks go when it lands
        self._blocks = blocks
        self._block_size = block_size
        self._batches: deque[Batch] = deque()
        self._last = Batch()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def take_off(self, plan: Plan) -> Batch:
        """The batch of the plan, in flight if there is anything in it."""
        if not self._batches and self._last.is_advance_to(plan.sequences, plan.num_new_tokens):
            self._last.advance(self._block_size)
        else:
            samples = self._batches[-1].sampled if self._batches else []
            flying = {sequence: row for row, sequence in enumerate(samples)}
            self._last = build_batch(plan.sequences, plan.num_new_tokens, self._block_size, flying=flying)
        if not plan.sequences:  # what must be moved waits for the next step
            return self._last
        return self._fly(self._last, self._blocks.take_moves())

    def repeat(self) -> Batch | None:
        """The rows of the last batch again, each with the token that it sampled; None if that must be planned."""
        if self._batches or not self._grow():
            return None
        self._last.advance(self._block_size)
        return self._fly(self._last, self._blocks.take_moves())

    def redo(self, failed: Batch, sequences: list[Sequence], num_new_tokens: list[int]) -> Batch:
        """A batch that computes again, for some of the sequences of a failed one, what that was to compute."""
        batch = build_batch(sequences, num_new_tokens, self._block_size)
        return self._fly(batch, failed.moves)  # which know whether they were carried out

    def land(self, *, is_good: bool) -> Batch:
        """Count what the oldest batch computed, unless it failed; free what was only waiting for that."""
        batch, block_size, running = self._batches.popleft(), self._block_size, Status.RUNNING
        if not is_good:
            self._last = Batch()  # nothing can be advanced from what was not computed
        self._blocks.land(batch.moves)
        for sequence, num_new in zip(batch.sequences, batch.num_new_tokens, strict=True):
            sequence.num_flying_tokens -= num_new
            if is_good and sequence.status is running:
                num_before = sequence.num_computed_tokens
                sequence.num_computed_tokens = num_before + num_new
                if num_before % block_size + num_new >= block_size:  # a block is full
                    self._blocks.publish(sequence)
        for sequence in batch.sampled:
            sequence.num_future_tokens -= 1
        for sequence in [s for s in self.leaving if not s.num_flying_tokens]:
            self.leaving.discard(sequence)
            self._blocks.release(sequence)
        return batch

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of an ended sequence: now, or when the step that computes it has landed."""
        if sequence.num_flying_tokens:
            self.leaving.add(sequence)
        else:
            self._blocks.release(sequence)

    def _grow(self) -> bool:
        """Give every row of the last batch the block of its next token; False if one cannot go on so."""
        for sequence, length in zip(self._last.sequences, self._last.context_lens, strict=True):
            if len(sequence.token_ids) != length + 1:
                return False
            # Only a group's may share the block that they are about to write.
            needs_block = length % self._block_size == 0 or sequence.group is not None
            if needs_block and not self._blocks.allocate(sequence, length + 1):
                return False
        return True

    def _fly(self, batch: Batch, moves: Moves) -> Batch:
        batch.moves = moves
        self._batches.append(batch)
        for sequence, num_new in zip(batch.sequences, batch.num_new_tokens, strict=True):
            sequence.num_flying_tokens += num_new
        for sequence in batch.sampled:
            sequence.num_future_tokens += 1
        return batch
