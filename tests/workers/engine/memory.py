"""A memory that remembers which context each KV slot was computed for, on device, host and disk, and executes moves."""

from workers.engine.moves import Moves
from workers.engine.sequence import Sequence

Cell = tuple[bytes, tuple[int, ...]] | None  # salt and the tokens up to this one; None is garbage
Cells = tuple[Cell, ...]  # of one block


class Memory:
    """Blocks of cells. It is also the disk tier's stand-in: reads end when a test says so."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int = 0) -> None:
        self.block_size = block_size
        self.garbage: Cells = (None,) * block_size
        self.device = [self.garbage] * num_blocks
        self.host = [self.garbage] * num_slots
        self.files: dict[bytes, Cells] = {}
        self.reading: list[bytes] = []
        self.read: dict[bytes, Cells] = {}
        self._ended: list[tuple[bytes, bool]] = []

    def execute(self, moves: Moves) -> None:
        for slot, key in moves.spills:
            self.files[key] = self.host[slot]
        for key, slot in moves.fills:
            self.host[slot] = self.read.pop(key)
        for block_id, slot in moves.offloads:
            self.host[slot] = self.device[block_id]
        for source, target in moves.copies:
            self.device[target] = self.device[source]
        for slot, block_id in moves.loads:
            self.device[block_id] = self.host[slot]
        moves.is_done = True

    def check(self, sequence: Sequence, block_table: list[int], end: int) -> None:
        """Assert that the cells of positions up to `end` are the sequence's."""
        for position in range(end):
            column, offset = divmod(position, self.block_size)
            cell = self.device[block_table[column]][offset]
            assert cell == self.cell(sequence, position), f"position {position} of {sequence.id} holds {cell}"

    def compute(self, sequence: Sequence, block_table: list[int], start: int, end: int, *, is_good: bool) -> None:
        """Write the cells of positions `start` up to `end`, with garbage if it goes wrong."""
        for position in range(start, end):
            column, offset = divmod(position, self.block_size)
            cells = self.device[block_table[column]]
            cell = self.cell(sequence, position) if is_good else None
            self.device[block_table[column]] = (*cells[:offset], cell, *cells[offset + 1 :])

    def cell(self, sequence: Sequence, position: int) -> Cell:
        return (sequence.salt, tuple(sequence.token_ids[: position + 1]))

    # What the host tier asks of the disk

    def has(self, key: bytes) -> bool:
        return key in self.files

    def prefetch(self, key: bytes) -> None:
        self.reading.append(key)

    def end_read(self, *, is_good: bool) -> None:
        """The oldest read ends."""
        key = self.reading.pop(0)
        is_good = is_good and key in self.files
        if is_good:
            self.read[key] = self.files[key]
        else:
            self.files.pop(key, None)
        self._ended.append((key, is_good))

    def poll(self) -> list[tuple[bytes, bool]]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout: float) -> None:
        while self.reading:
            self.end_read(is_good=True)

    def discard(self, key: bytes) -> None:
        self.read.pop(key, None)

    def revoke(self, key: bytes) -> None:
        self.files.pop(key, None)
