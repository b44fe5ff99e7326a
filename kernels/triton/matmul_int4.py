"""The linear layer over int4 weights in groups: read packed, made x's dtype in the kernel, sums in fp32."""

import torch
import triton
import triton.language as tl

from kernels.triton.matmul_tiles import choose_tiles, launch, store_tile

COLUMNS = 128


@triton.jit
def _load_per_byte(ptrs, mask, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr):
    """fp32 [OUTPUTS, GROUPS * HALF] of one value for each group, `ptrs` [OUTPUTS, GROUPS]: for each byte of it."""
    values = tl.load(ptrs, mask=mask, other=0).to(tl.float32)
    return tl.reshape(tl.broadcast_to(values[:, :, None], (OUTPUTS, GROUPS, HALF)), (OUTPUTS, GROUPS * HALF))


@triton.jit
def _add_half(total, x_ptrs, is_read, nibbles, zeros, scales):
    """`total` [ROWS, OUTPUTS] and the products of x [ROWS, BYTES] with one half of each group's weights."""
    x = tl.load(x_ptrs, mask=is_read, other=0.0)
    weight = ((nibbles.to(tl.float32) - zeros) * scales).to(x.dtype)
    return tl.dot(x, tl.trans(weight), total, input_precision="ieee")


@triton.jit
def _multiply(
    x_ptr,
    x_stride,
    packed_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    y_ptr,
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
    is_row, is_output = rows < num_rows, outputs < num_outputs
    num_groups = num_columns // GROUP
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    packed_ptrs = packed_ptr + outputs.to(tl.int64)[:, None] * (num_columns // 2)
    group_places = outputs.to(tl.int64)[:, None] * num_groups
    bytes_ = tl.arange(0, COLUMNS // 2)[None, :]
    lower_columns = bytes_ // HALF * GROUP + bytes_ % HALF
    start = tl.program_id(2) * columns_per_split
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for first in range(start, min(start + columns_per_split, num_columns), COLUMNS):
        columns = first + lower_columns
        is_column = columns < num_columns  # of both halves, as groups are whole
        packed = tl.load(packed_ptrs + (first // 2 + bytes_), mask=is_output[:, None] & is_column, other=0)
        groups = first // GROUP + tl.arange(0, GROUPS)[None, :]
        is_group = is_output[:, None] & (groups < num_groups)
        scales = _load_per_byte(scales_ptr + group_places + groups, is_group, OUTPUTS, GROUPS, HALF)
        zeros = 8.0
        if HAS_ZEROS:
            zeros = _load_per_byte(zeros_ptr + group_places + groups, is_group, OUTPUTS, GROUPS, HALF)
        is_read = is_row[:, None] & is_column
        total = _add_half(total, x_ptrs + columns, is_read, packed & 15, zeros, scales)
        total = _add_half(total, x_ptrs + columns + HALF, is_read, packed >> 4, zeros, scales)

    store_tile(total, bias_ptr, y_ptr, rows, outputs, num_rows, num_outputs, HAS_BIAS, IS_SPLIT)


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
    launch(
        _multiply,
        (x, x.stride(0), packed, scales, scales if zeros is None else zeros),
        y,
        tiles,
        num_columns=num_columns,
        sum_dtype=torch.float32,
        bias=bias,
        GROUP=group,
        HAS_ZEROS=zeros is not None,
        num_stages=3 if tiles.rows <= 64 else 2,
    )
    return y
