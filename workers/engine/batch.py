"""The snapshot of one step: which sequences compute which tokens, and the KV slots they read and write."""

from dataclasses import dataclass, field

from workers.engine.sequence import Sequence


@dataclass(slots=True)
class Batch:
    """Plain lists that the runner turns into tensors. Built anew when the membership changes, else advanced in place.

    Token arrays are concatenated over the sequences, [num_tokens]; sequence i's are those from `cu_seqlens_q[i]` up to
    `cu_seqlens_q[i + 1]`, the last of its `context_lens[i]` positions.
    """

    sequences: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)  # [num_seqs], how many tokens each computes
    input_ids: list[int] = field(default_factory=list)  # [num_tokens]
    positions: list[int] = field(default_factory=list)  # [num_tokens]
    slot_mapping: list[int] = field(default_factory=list)  # [num_tokens]
    cu_seqlens_q: list[int] = field(default_factory=lambda: [0])  # [num_seqs + 1]
    context_lens: list[int] = field(default_factory=list)  # [num_seqs], including this step's tokens
    block_tables: list[list[int]] = field(default_factory=list)  # [num_seqs][num_blocks of that sequence]
    sampled: list[Sequence] = field(default_factory=list)  # those that have all their tokens after this step
    logits_rows: list[int] = field(default_factory=list)  # [num_sampled], indices into the tokens
    # (row, column, block id) of what the block tables gained since the last step; None when the tables are new.
    new_blocks: list[tuple[int, int, int]] | None = None

    def __len__(self) -> int:
        return len(self.sequences)

    def is_advance_to(self, sequences: list[Sequence], num_new_tokens: list[int]) -> bool:
        """Whether the next step has the same rows as this one, each with the one token that it sampled here."""
        is_decode = len(self.input_ids) == len(self.sampled) == len(self.sequences)
        return is_decode and sequences == self.sequences and num_new_tokens == self.num_new_tokens

    def advance(self, block_size: int) -> None:
        """Move every row on by the token it sampled."""
        new_blocks = []
        for row, sequence in enumerate(self.sequences):
            position = self.context_lens[row]
            column, offset = divmod(position, block_size)
            block_table = self.block_tables[row]
            if column == len(block_table):
                block_table.append(sequence.block_table[column])
                new_blocks.append((row, column, block_table[column]))
            self.input_ids[row] = sequence.token_ids[position]
            self.positions[row] = position
            self.slot_mapping[row] = block_table[column] * block_size + offset
            self.context_lens[row] = position + 1
        self.new_blocks = new_blocks


def build_batch(sequences: list[Sequence], num_new_tokens: list[int], block_size: int) -> Batch:
    """The batch in which sequence i computes its next `num_new_tokens[i]` tokens, whose blocks it already holds."""
    batch = Batch(sequences=sequences, num_new_tokens=num_new_tokens)
    for sequence, num_new in zip(sequences, num_new_tokens, strict=True):
        _append_row(batch, sequence, num_new, block_size)
    return batch


def _append_row(batch: Batch, sequence: Sequence, num_new: int, block_size: int) -> None:
    start = sequence.num_computed_tokens
    end = start + num_new
    batch.input_ids.extend(sequence.token_ids[start:end])
    batch.positions.extend(range(start, end))
    batch.slot_mapping.extend(_slots(sequence.block_table, start, end, block_size))
    batch.cu_seqlens_q.append(len(batch.input_ids))
    batch.context_lens.append(end)
    batch.block_tables.append(list(sequence.block_table))
    if end == sequence.num_tokens:
        batch.sampled.append(sequence)
        batch.logits_rows.append(len(batch.input_ids) - 1)


def _slots(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of the positions from `start` up to `end`, one run per block."""
    slots: list[int] = []
    while start < end:
        column, offset = divmod(start, block_size)
        first = block_table[column] * block_size + offset
        num_slots = min(block_size - offset, end - start)
        slots.extend(range(first, first + num_slots))
        start += num_slots
    return slots
