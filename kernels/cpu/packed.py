"""Weights in the order in which the C++ kernels read them: panels of 64 rows, padded with zeros."""

from dataclasses import dataclass

import torch
from torch.nn import functional

PANEL_ROWS = 64  # `kPanel`
TILE_ROWS = 16
HALF_ROWS = 32  # half a panel, whose tiles lie together
STEP_COLUMNS = 32  # so many columns of 16 rows are a tile of 1 KiB
ALIGNMENT = 64
GATED_ROWS = 16  # of half a gated panel the first are gates, the others what they gate


@dataclass(frozen=True)
class PackedMatrix:
    """A weight [num_rows, num_columns] in the layout that the kernels of `format` read."""

    format: str  # what the kernels' names end with
    data: torch.Tensor  # contiguous; the kernels know its shape
    num_rows: int  # of the weight as it was, gates and what they gate together
    num_columns: int
    padded_rows: int
    padded_columns: int
    is_gated: bool


def pack_bf16(weight: torch.Tensor, *, is_gated: bool = False) -> PackedMatrix:
    """`weight` [n, k] as bfloat16 [panels, 2 halves, steps, 2 tiles, 16 pairs of columns, 16 rows, 2]; with
    `is_gated`, its first half are gates and its second what they gate, as `interleave_gates` puts them."""
    num_rows, num_columns = weight.shape
    rows = pad(interleave_gates(weight) if is_gated else weight).to(torch.bfloat16)
    padded_rows, padded_columns = rows.shape
    pairs = rows.view(torch.int32)  # moved together, which is faster than one by one
    halves = (padded_rows // PANEL_ROWS, PANEL_ROWS // HALF_ROWS, HALF_ROWS // TILE_ROWS, TILE_ROWS)
    data = (
        pairs.view(*halves, padded_columns // STEP_COLUMNS, -1)
        .permute(0, 1, 4, 2, 5, 3)
        .contiguous()
        .view(torch.bfloat16)
    )
    return PackedMatrix(
        "bf16", data.view(*data.shape[:-1], TILE_ROWS, 2), num_rows, num_columns, padded_rows, padded_columns, is_gated
    )


def pad(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [n, k], contiguous, with zeros up to multiples of 64."""
    num_rows, num_columns = weight.shape
    return functional.pad(weight, (0, -num_columns % ALIGNMENT, 0, -num_rows % PANEL_ROWS)).contiguous()


def interleave_gates(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [2 * n, ...], gates over what they gate, in runs: 16 gates, then what these gate; both are padded."""
    gates, others = (
        functional.pad(half, (0, 0) * (half.dim() - 1) + (0, -len(half) % GATED_ROWS)) for half in weight.chunk(2)
    )
    runs = [half.view(-1, GATED_ROWS, *half.shape[1:]) for half in (gates, others)]
    return torch.stack(runs, dim=1).flatten(0, 2)
