"""Which place on the device each running sequence has: a row of the block tables, and its last token beside it."""

from workers.engine.batch import Batch
from workers.engine.sequence import Sequence, Status


class Slots:
    """A sequence has its slot for as long as it runs. Knows what the device's block tables hold, and what they lack."""

    def __init__(self, num_slots: int, max_blocks: int) -> None:
        """So many, and one for rows that are no sequence's; tables are `max_blocks` wide."""
        self.dummy = num_slots
        self._max_blocks = max_blocks
        self._free = list(range(num_slots))
        self._slots: dict[Sequence, int] = {}
        self._tables: list[list[int]] = [[] for _ in range(num_slots)]  # on the device once the last changes are
        self._last: Batch | None = None  # whose tables these are, row by row

    def take(self, sequences: list[Sequence]) -> list[int]:
        """The slot of each, in which all of them are running; of those that run no more, the slots are free."""
        missing = [sequence for sequence in sequences if sequence not in self._slots]
        if missing:
            for sequence in [each for each in self._slots if each.status is not Status.RUNNING]:
                self._free.append(self._slots.pop(sequence))
            for sequence in missing:
                self._slots[sequence] = self._free.pop()
        return [self._slots[sequence] for sequence in sequences]

    def find(self, sequence: Sequence) -> int:
        """The slot of one, or the dummy: a group's choice has none before it is forked."""
        return self._slots.get(sequence, self.dummy)

    def update(self, batch: Batch, slots: list[int]) -> tuple[list[int], list[int]]:
        """(places, block ids): what is to be written to the block tables, as one long row, for the batch's rows.

        From now on it counts as written.
        """
        places: list[int] = []
        block_ids: list[int] = []
        for slot, column, block_id in self._changes(batch, slots):
            places.append(slot * self._max_blocks + column)
            block_ids.append(block_id)
        self._last = batch
        return places, block_ids

    def forget(self) -> None:
        """Take nothing of what the device holds for granted."""
        self._last = None
        for table in self._tables:
            table.clear()

    def _changes(self, batch: Batch, slots: list[int]) -> list[tuple[int, int, int]]:
        """(slot, column, block id) of what differs."""
        if batch is self._last and batch.new_blocks is not None:  # what the same rows gained
            changes = [(slots[row], column, block_id) for row, column, block_id in batch.new_blocks]
            for slot, column, block_id in changes:
                self._tables[slot][column:] = [block_id]
            return changes
        changes = []
        for slot, table in zip(slots, batch.block_tables, strict=True):
            known = self._tables[slot]
            if table != known:
                changes.extend((slot, column, table[column]) for column in _differing(table, known))
                self._tables[slot] = list(table)
        return changes


def _differing(table: list[int], known: list[int]) -> list[int]:
    """The columns of `table` that `known` has not, or has otherwise. Mostly there are just more."""
    num_known = len(known)
    if table[:num_known] == known:
        return list(range(num_known, len(table)))
    return [column for column, block_id in enumerate(table) if column >= num_known or known[column] != block_id]
