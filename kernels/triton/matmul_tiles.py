"""How a linear layer is cut into tiles and launched, and the sum of the parts where its columns are cut too.

A step of decoding has few rows, whose tiles are too few to keep a device busy. The parts are added in one order, so
equal shapes give equal bits.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

MIN_PROGRAMS = 256  # of a device with about 130 multiprocessors; more splits than that only move more parts
MAX_SPLITS = 16
SUM_BLOCK = 256


@dataclass(frozen=True)
class Tiles:
    """Rows of x and of the weight in a tile, columns in a step, and into how many runs of steps these are split."""

    rows: int
    outputs: int
    columns: int
    num_splits: int
    columns_per_split: int  # a multiple of `columns`
    num_warps: int

    def grid(self, num_rows: int, num_outputs: int) -> tuple[int, int, int]:
        """Programs along outputs, rows and splits. Neighbours share rows of x, which stay in the cache."""
        return triton.cdiv(num_outputs, self.outputs), triton.cdiv(num_rows, self.rows), self.num_splits


def choose_tiles(num_rows: int, num_outputs: int, num_columns: int, *, columns: int, num_splits: int | None) -> Tiles:
    """For x [num_rows, num_columns] and a weight [num_outputs, num_columns], by their shapes alone.

    `num_splits` None takes as many as fill the device; 1 makes a row's result independent of the number of rows, within
    16, 17 to 32, 33 to 64, and more.
    """
    rows = min(max(16, triton.next_power_of_2(num_rows)), 128)
    outputs = 128 if num_rows > 64 else 64
    num_steps = triton.cdiv(num_columns, columns)
    if num_splits is None:
        num_tiles = triton.cdiv(num_outputs, outputs) * triton.cdiv(num_rows, rows)
        num_splits = min(triton.cdiv(MIN_PROGRAMS, num_tiles), MAX_SPLITS, max(1, num_steps // 2))
    per_split = triton.cdiv(num_steps, max(1, num_splits))
    return Tiles(
        rows=rows,
        outputs=outputs,
        columns=columns,
        num_splits=triton.cdiv(num_steps, per_split),
        columns_per_split=per_split * columns,
        num_warps=8 if rows * outputs > 8192 else 4,
    )


def launch(
    kernel: Any,
    operands: tuple[torch.Tensor | int, ...],
    y: torch.Tensor,
    tiles: Tiles,
    *,
    num_columns: int,
    sum_dtype: torch.dtype,
    bias: torch.Tensor | None,
    row_scales: torch.Tensor | None = None,
    output_scales: torch.Tensor | None = None,
    **constants: Any,
) -> None:
    """Fill y [n, out] by a kernel that takes `operands`, bias, y, n, out, `num_columns` and the columns of a split.

    Where these are split, y is for the kernel the parts [splits, n, out] of `sum_dtype`. They are added up here, times
    the scales if given, and plus bias.
    """
    num_rows, num_outputs = y.shape
    is_split = tiles.num_splits > 1
    parts = y.new_empty(tiles.num_splits, num_rows, num_outputs, dtype=sum_dtype) if is_split else y
    kernel[tiles.grid(num_rows, num_outputs)](
        *operands,
        parts if bias is None else bias,
        parts,
        num_rows,
        num_outputs,
        num_columns,
        tiles.columns_per_split,
        HAS_BIAS=bias is not None,
        IS_SPLIT=is_split,
        ROWS=tiles.rows,
        OUTPUTS=tiles.outputs,
        COLUMNS=tiles.columns,
        num_warps=tiles.num_warps,
        **constants,
    )
    if is_split:
        sum_parts(parts, y, row_scales=row_scales, output_scales=output_scales, bias=bias)


@triton.jit
def store_tile(
    tile,
    bias_ptr,
    y_ptr,
    rows,
    outputs,
    num_rows,
    num_outputs,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """Write y [num_rows, num_outputs] at `rows` and `outputs`, with the bias, or with IS_SPLIT one split's part."""
    is_output = outputs < num_outputs
    places = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    if IS_SPLIT:
        places += tl.program_id(2).to(tl.int64) * num_rows * num_outputs
    elif HAS_BIAS:
        tile = tile + tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    is_inside = (rows < num_rows)[:, None] & is_output[None, :]
    tl.store(y_ptr + places, tile.to(y_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _sum_parts(
    parts_ptr,
    row_scales_ptr,
    output_scales_ptr,
    bias_ptr,
    y_ptr,
    num_splits,
    num_rows,
    num_outputs,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = outputs < num_outputs
    part_ptrs = parts_ptr + row * num_outputs + outputs
    total = tl.zeros((BLOCK,), parts_ptr.dtype.element_ty)
    for split in range(num_splits):
        total += tl.load(part_ptrs + tl.cast(split, tl.int64) * num_rows * num_outputs, mask=is_inside, other=0)
    y = total.to(tl.float32)
    if HAS_SCALES:
        y = y * tl.load(row_scales_ptr + row) * tl.load(output_scales_ptr + outputs, mask=is_inside, other=0.0)
    if HAS_BIAS:
        y = y + tl.load(bias_ptr + outputs, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * num_outputs + outputs, y.to(y_ptr.dtype.element_ty), mask=is_inside)


def sum_parts(
    parts: torch.Tensor,
    y: torch.Tensor,
    *,
    row_scales: torch.Tensor | None = None,
    output_scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> None:
    """Write to y [n, out] the sums of parts [splits, n, out], int32 or fp32, times both scales if given, plus bias."""
    num_splits, num_rows, num_outputs = parts.shape
    assert (row_scales is None) == (output_scales is None) and parts.is_contiguous() and y.is_contiguous()
    _sum_parts[(num_rows, triton.cdiv(num_outputs, SUM_BLOCK))](
        parts,
        parts if row_scales is None else row_scales,
        parts if output_scales is None else output_scales,
        parts if bias is None else bias,
        y,
        num_splits,
        num_rows,
        num_outputs,
        HAS_SCALES=row_scales is not None,
        HAS_BIAS=bias is not None,
        BLOCK=SUM_BLOCK,
        num_warps=4,
    )
