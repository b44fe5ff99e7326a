"""Weights in int8, a scale for each row, in the order in which the C++ kernels read them."""

import torch
from torch.nn import functional

from kernels.cpu.packed import HALF_ROWS, PANEL_ROWS, TILE_ROWS, PackedMatrix, interleave_gates, pad

BLOCK_COLUMNS, QUAD = 64, 4  # `kInt8Block`, `kQuad`
LARGEST = 127
SHIFT = 128  # what some kernels add to x, so that it has no sign
ROWS_TOGETHER = 16384  # quantized at a time: the rows of a vocabulary would take gigabytes as floats


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [n, k] and scales fp32 [n] of a floating-point `weight` [n, k], which is about their product."""
    parts = [_quantize(rows.float()) for rows in torch.split(weight, ROWS_TOGETHER)]
    rows, scales = zip(*parts, strict=True)
    return torch.cat(rows), torch.cat(scales)


def _quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = rows.abs().amax(dim=1) / LARGEST
    quotients = rows / torch.where(scales > 0, scales, 1)[:, None]
    return quotients.round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def pack_int8(weight: torch.Tensor, scales: torch.Tensor, *, is_gated: bool = False) -> PackedMatrix:
    """`weight` int8 [n, k] and its `scales` fp32 [n] as bytes [panels, 64 * (padded k + 8)].

    A panel is [2 halves, blocks of 64 columns, 2 tiles, 16 quads of columns, 16 rows, 4] int8, its rows' scales, and
    128 times the sum of each row as int32. With `is_gated` the first half of the rows are gates, as in
    `interleave_gates`.
    """
    num_rows, num_columns = weight.shape
    if is_gated:
        weight, scales = interleave_gates(weight), interleave_gates(scales)
    weight = pad(weight)
    padded_rows, padded_columns = weight.shape
    scales = functional.pad(scales.float(), (0, padded_rows - len(scales)))
    ends = torch.stack((scales.view(torch.int32), weight.sum(dim=1, dtype=torch.int32) * SHIFT))  # [2, padded n]
    ends = ends.view(2, -1, PANEL_ROWS).transpose(0, 1).flatten(1)  # [panels, 128]
    data = torch.cat((_tiles(weight), ends), dim=1).view(torch.uint8)
    return PackedMatrix("int8", data, num_rows, num_columns, padded_rows, padded_columns, is_gated)


def _tiles(weight: torch.Tensor) -> torch.Tensor:
    quads = weight.view(torch.int32)  # moved together, which is faster than one by one
    num_panels, num_blocks = weight.shape[0] // PANEL_ROWS, weight.shape[1] // BLOCK_COLUMNS
    halves = (num_panels, PANEL_ROWS // HALF_ROWS, HALF_ROWS // TILE_ROWS, TILE_ROWS)
    return quads.view(*halves, num_blocks, BLOCK_COLUMNS // QUAD).permute(0, 1, 4, 2, 5, 3).flatten(1)
