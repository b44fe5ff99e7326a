"""The linear layer over int4 weights in groups: read packed, made x's dtype in the kernel, sums in fp32."""

import torch
import triton
import triton.language as tl

from kernels.triton.matmul_tiles import choose_tiles, sum_parts

COLUMNS = 128


@triton.jit
def _per_byte(values, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr):
    """[OUTPUTS, GROUPS * HALF] of values [OUTPUTS, GROUPS], one for each byte of its group."""
    return tl.reshape(tl.broadcast_to(values[:, :, None], (OUTPUTS, GROUPS, HALF)), (OUTPUTS, GROUPS * HALF))


@triton.jit
def _multiply(
    x_ptr,
    packed_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    y_ptr,
    x_stride,
    num_rows,
    num_outputs,
    num_columns,
    columns_per_split,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of y [num_rows, num_outputs], or with IS_SPLIT of one split's part of it, fp32.

    A group's lower nibbles are its first half of columns and its upper nibbles the second, so a tile of bytes meets two
    tiles of x and nothing is shuffled.
    """
    HALF: tl.constexpr = GROUP // 2
    GROUPS: tl.constexpr = COLUMNS // GROUP
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    num_groups = num_columns // GROUP
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    packed_ptrs = packed_ptr + outputs.to(tl.int64)[:, None] * (num_columns // 2)
    group_places = outputs.to(tl.int64)[:, None] * num_groups
    bytes_ = tl.arange(0, COLUMNS // 2)[None, :]
    lower_columns = bytes_ // HALF * GROUP + bytes_ % HALF
    start = split * columns_per_split
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for first in range(start, min(start + columns_per_split, num_columns), COLUMNS):
        columns = first + lower_columns
        is_column = columns < num_columns  # of both halves, as groups are whole
        packed_columns = first // 2 + bytes_
        packed = tl.load(packed_ptrs + packed_columns, mask=is_output[:, None] & is_column, other=0)
        groups = first // GROUP + tl.arange(0, GROUPS)[None, :]
        is_group = is_output[:, None] & (groups < num_groups)
        scales = tl.load(scales_ptr + group_places + groups, mask=is_group, other=0.0).to(tl.float32)
        scales = _per_byte(scales, OUTPUTS, GROUPS, HALF)
        if HAS_ZEROS:
            zeros = tl.load(zeros_ptr + group_places + groups, mask=is_group, other=0).to(tl.float32)
            zeros = _per_byte(zeros, OUTPUTS, GROUPS, HALF)
        else:
            zeros = 8.0
        x = tl.load(x_ptrs + columns, mask=is_row[:, None] & is_column, other=0.0)
        weight = (((packed & 15).to(tl.float32) - zeros) * scales).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
        x = tl.load(x_ptrs + columns + HALF, mask=is_row[:, None] & is_column, other=0.0)
        weight = (((packed >> 4).to(tl.float32) - zeros) * scales).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")

    places = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    is_inside = is_row[:, None] & is_output[None, :]
    if IS_SPLIT:
        tl.store(y_ptr + split.to(tl.int64) * num_rows * num_outputs + places, total, mask=is_inside)
    else:
        if HAS_BIAS:
            total = total + tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        tl.store(y_ptr + places, total.to(y_ptr.dtype.element_ty), mask=is_inside)


def int4_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """`x @ (scales * (quants - zeros)).T + bias`, [n, out] in `out_dtype` or x's: x [n, in], the weight in x's dtype.

    `packed` are quants [out, in] as `reference_quantized.pack_int4` packs them; scales [out, in / group] of any float
    dtype, zeros uint8 of that shape, or 8 each; all contiguous. A group is 32 columns, 64 or 128.
    """
    (num_rows, num_columns), num_outputs = x.shape, len(packed)
    group = num_columns // scales.shape[1]
    assert group in (32, 64, 128) and scales.shape == (num_outputs, num_columns // group), "groups are whole"
    assert packed.shape == (num_outputs, num_columns // 2) and packed.is_contiguous() and scales.is_contiguous()
    assert zeros is None or (zeros.shape == scales.shape and zeros.is_contiguous())
    assert x.stride(1) == 1, "rows are contiguous"
    y = x.new_empty(num_rows, num_outputs, dtype=out_dtype)
    if num_rows == 0:
        return y
    tiles = choose_tiles(num_rows, num_outputs, num_columns, columns=COLUMNS, num_splits=num_splits)
    is_split = tiles.num_splits > 1
    parts = y.new_empty(tiles.num_splits, num_rows, num_outputs, dtype=torch.float32) if is_split else y
    _multiply[tiles.grid(num_rows, num_outputs)](
        x,
        packed,
        scales,
        scales if zeros is None else zeros,
        scales if bias is None else bias,
        parts,
        x.stride(0),
        num_rows,
        num_outputs,
        num_columns,
        tiles.columns_per_split,
        GROUP=group,
        HAS_ZEROS=zeros is not None,
        HAS_BIAS=bias is not None,
        IS_SPLIT=is_split,
        ROWS=tiles.rows,
        OUTPUTS=tiles.outputs,
        COLUMNS=tiles.columns,
        num_warps=tiles.num_warps,
        num_stages=3 if tiles.rows <= 64 else 2,
    )
    if is_split:
        sum_parts(parts, y, bias=bias)
    return y
