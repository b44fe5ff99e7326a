"""Runs single CPU kernels: memory as a program lays it out, and one step around one kernel."""

import torch

from kernels.attention import AttentionBatch
from kernels.cpu.program import Argument, Program
from kernels.cpu.threads import Threads

ALIGNMENT, SPARE_ROWS = 64, 16


def padded(x: torch.Tensor) -> torch.Tensor:
    """x [rows, columns] with zeros up to a multiple of 64 columns and rows of NaN after the last: a kernel may read
    both, and must not let the NaN reach a real row."""
    num_rows, num_columns = x.shape
    memory = torch.zeros(num_rows + SPARE_ROWS, num_columns + -num_columns % ALIGNMENT, dtype=x.dtype)
    if x.is_floating_point():
        memory[num_rows:] = torch.nan
    memory[:num_rows, :num_columns] = x
    return memory[:num_rows, :num_columns]


def run_once(
    name: str,
    *arguments: Argument,
    num_tokens: int,
    instruction_set: str,
    num_threads: int = 1,
    input_ids: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    batch: AttentionBatch | None = None,
    rows: torch.Tensor | None = None,
) -> None:
    """Run one kernel for a step of `num_tokens`; what the step holds beyond their number is zeros where not given."""
    if input_ids is None:
        input_ids = torch.zeros(num_tokens, dtype=torch.int64)
    if positions is None:
        positions = torch.zeros(num_tokens, dtype=torch.int64)
    if rows is None:
        rows = torch.zeros(0, dtype=torch.int64)
    program = Program(
        Threads(num_threads), max_tokens=num_tokens, max_rows=max(1, len(rows)), instruction_set=instruction_set
    )
    program.append(name, *arguments)
    program.run(input_ids, positions, batch or one_sequence(num_tokens), rows)


def one_sequence(num_tokens: int) -> AttentionBatch:
    """All tokens are the first of one sequence, whose block table is one block."""
    return AttentionBatch(
        slot_mapping=torch.arange(num_tokens),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32),
    )
