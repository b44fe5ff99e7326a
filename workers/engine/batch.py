"""The snapshot of one step: which sequences compute which tokens, and the KV slots they read and write."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.engine.moves import Moves
from workers.engine.sequence import Sequence

FUTURE_ID = 0  # stands for a token that the step in flight samples


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows whose logits say how likely the prompt's own tokens are: those that predict `first` and what follows it."""

    sequence: Sequence
    first: int  # position of the first predicted token
    rows: range  # indices into the step's tokens


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Rows whose hidden states become part of the sequence's embedding."""

    sequence: Sequence
    rows: range  # indices into the step's tokens


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
    # Those that get a token in this step. The choices of a group get their first from their leader's row.
    sampled: list[Sequence] = field(default_factory=list)
    logits_rows: list[int] = field(default_factory=list)  # [num_sampled], indices into the tokens
    output_indices: list[int] = field(default_factory=list)  # [num_sampled], which output token of its sequence it is
    prompt_rows: list[PromptRows] = field(default_factory=list)
    pooled_rows: list[PooledRows] = field(default_factory=list)
    # (index into the tokens, index into the samples of the step before) of tokens that are being sampled just now.
    future_rows: list[tuple[int, int]] = field(default_factory=list)
    # (row, column, block id) of what the block tables gained since the last step; None when the tables are new.
    new_blocks: list[tuple[int, int, int]] | None = None
    moves: Moves = field(default_factory=Moves)  # carried out before anything is computed

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that attention looks at, sliding windows aside."""
        return sum(
            num_new * end - num_new * (num_new - 1) // 2
            for num_new, end in zip(self.num_new_tokens, self.context_lens, strict=True)
        )

    @property
    def is_decode(self) -> bool:
        """Whether every row computes one token and samples one."""
        return len(self.input_ids) == len(self.sampled) == len(self.sequences)

    def is_advance_to(self, sequences: list[Sequence], num_new_tokens: list[int]) -> bool:
        """Whether the next step has the same rows as this one, each with the one token that it sampled here."""
        return self.is_decode and sequences == self.sequences and num_new_tokens == self.num_new_tokens

    def advance(self, block_size: int) -> None:
        """Move every row on by the token it sampled. A block that became the row's own is written to its table."""
        new_blocks = []
        self.positions = self.context_lens
        self.context_lens = [length + 1 for length in self.context_lens]
        self.output_indices = [index + 1 for index in self.output_indices]
        for row, (sequence, position) in enumerate(zip(self.sequences, self.positions, strict=True)):
            self.input_ids[row] = sequence.token_ids[position]
            column, offset = divmod(position, block_size)
            if offset and sequence.group is None:  # the same block, which nobody else writes or copies
                self.slot_mapping[row] += 1
                continue
            block_table, block_id = self.block_tables[row], sequence.block_table[column]
            self.slot_mapping[row] = block_id * block_size + offset
            if column == len(block_table):
                block_table.append(block_id)
                new_blocks.append((row, column, block_id))
            elif block_table[column] != block_id:  # copied on write
                block_table[column] = block_id
                new_blocks.append((row, column, block_id))
        self.new_blocks = new_blocks


def build_batch(
    sequences: list[Sequence],
    num_new_tokens: list[int],
    block_size: int,
    *,
    flying: Mapping[Sequence, int] | None = None,
) -> Batch:
    """The batch in which sequence i computes its next `num_new_tokens[i]` tokens, whose blocks it already holds.

    `flying` says which sample of the step in flight is whose.
    """
    batch = Batch(sequences=sequences, num_new_tokens=num_new_tokens)
    for sequence, num_new in zip(sequences, num_new_tokens, strict=True):
        _append_row(batch, sequence, num_new, block_size, flying or {})
    return batch


def _append_row(
    batch: Batch, sequence: Sequence, num_new: int, block_size: int, flying: Mapping[Sequence, int]
) -> None:
    first, start = len(batch.input_ids), sequence.num_started_tokens
    end = start + num_new
    batch.input_ids.extend(sequence.token_ids[start:end])
    if end > sequence.num_tokens:
        batch.future_rows.append((len(batch.input_ids), flying[sequence]))
        batch.input_ids.append(FUTURE_ID)
    batch.positions.extend(range(start, end))
    batch.slot_mapping.extend(_slots(sequence.block_table, start, end, block_size))
    batch.cu_seqlens_q.append(len(batch.input_ids))
    batch.context_lens.append(end)
    batch.block_tables.append(list(sequence.block_table))
    for sampled in _samplers(sequence, end):
        batch.sampled.append(sampled)
        batch.logits_rows.append(len(batch.input_ids) - 1)
        batch.output_indices.append(sampled.num_output_tokens + sampled.num_future_tokens)
    num_predicted = min(end, sequence.num_prompt_tokens - 1) - start
    if sequence.wants_prompt_logprobs and num_predicted > 0:
        batch.prompt_rows.append(PromptRows(sequence, start + 1, range(first, first + num_predicted)))
    if sequence.params.pooling == "mean":
        batch.pooled_rows.append(PooledRows(sequence, range(first, first + num_new)))
    elif sequence.params.pooling == "last" and end == sequence.num_tokens:
        batch.pooled_rows.append(PooledRows(sequence, range(first + num_new - 1, first + num_new)))


def _samplers(sequence: Sequence, end: int) -> list[Sequence]:
    """Who gets a token from the last row of a chunk up to `end`."""
    if sequence.params.pooling is not None:
        return []
    if sequence.group is not None and not sequence.group.is_forked:
        if end < sequence.num_prompt_tokens:
            return []
        fresh = [choice for choice in sequence.group.living if choice.num_tokens == end]
        return fresh[:1] if sequence.params.num_beams > 1 else fresh  # all beams begin with one row's candidates
    return [sequence] if end == sequence.num_tokens + sequence.num_future_tokens else []


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
