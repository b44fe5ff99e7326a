"""The linear layer over int8 weights: products of int8, exact sums in int32, scales at the end."""

import torch
import triton
import triton.language as tl

from kernels.triton.matmul_tiles import choose_tiles, launch, store_tile
from kernels.triton.quantize import quantize_rows

COLUMNS = 128


@triton.jit
def _multiply(
    x_ptr,
    weight_ptr,
    row_scales_ptr,
    scales_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    num_columns,
    columns_per_split,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of y [num_rows, num_outputs], or with IS_SPLIT of one split's part of it, int32 and not scaled."""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * num_columns
    weight_ptrs = weight_ptr + outputs.to(tl.int64)[:, None] * num_columns
    start = tl.program_id(2) * columns_per_split
    total = tl.zeros((ROWS, OUTPUTS), tl.int32)
    for first in range(start, min(start + columns_per_split, num_columns), COLUMNS):
        columns = first + tl.arange(0, COLUMNS)[None, :]
        is_column = columns < num_columns
        x = tl.load(x_ptrs + columns, mask=is_row[:, None] & is_column, other=0)
        weight = tl.load(weight_ptrs + columns, mask=is_output[:, None] & is_column, other=0)
        total = tl.dot(x, tl.trans(weight), total, out_dtype=tl.int32)

    if IS_SPLIT:
        y = total
    else:
        row_scales = tl.load(row_scales_ptr + rows, mask=is_row, other=0.0)
        scales = tl.load(scales_ptr + outputs, mask=is_output, other=0.0)
        y = total.to(tl.float32) * row_scales[:, None] * scales[None, :]
    store_tile(y, bias_ptr, y_ptr, rows, outputs, num_rows, num_outputs, HAS_BIAS, IS_SPLIT)


def int8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """`x @ (scales[:, None] * weight).T + bias`, [n, out] in `out_dtype` or x's, of x [n, in] rounded to int8.

    weight int8 [out, in] and scales fp32 [out], contiguous. Sums are exact, so a row's result is the same in any batch
    and for any `num_splits`.
    """
    (num_rows, num_columns), num_outputs = x.shape, len(weight)
    assert weight.shape == (num_outputs, num_columns) and weight.is_contiguous() and weight.dtype == torch.int8
    assert scales.shape == (num_outputs,) and scales.is_contiguous()
    y = x.new_empty(num_rows, num_outputs, dtype=out_dtype)
    if num_rows == 0:
        return y
    quants, row_scales = quantize_rows(x)
    tiles = choose_tiles(num_rows, num_outputs, num_columns, columns=COLUMNS, num_splits=num_splits)
    launch(
        _multiply,
        (quants, weight, row_scales, scales),
        y,
        tiles,
        num_columns=num_columns,
        sum_dtype=torch.int32,
        bias=bias,
        row_scales=row_scales,
        output_scales=scales,
        num_stages=3,  # 96 KiB at most, which every device since Ampere has
    )
    return y
