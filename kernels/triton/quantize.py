"""Rows rounded to int8, each by its own scale, as the int8 linear layer takes them."""

import torch
import triton
import triton.language as tl


@triton.jit
def _quantize_row(x_ptr, quants_ptr, scales_ptr, x_stride, dim, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < dim
    x = tl.load(x_ptr + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    is_odd = tl.max(tl.where((x != x) | (tl.abs(x) == float("inf")), 1, 0), axis=0) > 0
    largest = tl.max(tl.abs(x), axis=0)
    is_usual = (largest > 7.888609052210118e-31) & (is_odd == 0)  # 2**-100: below it 127 / largest is not finite
    inverse = tl.where(is_usual, 127.0 / largest, 0.0)
    # Adding and taking away 1.5 * 2**23 rounds to the nearest integer, to the even one of two.
    rounded = (tl.where(is_usual, x * inverse, 0.0) + 12582912.0) - 12582912.0
    tl.store(quants_ptr + row * dim + columns, rounded.to(tl.int8), mask=is_inside)
    scale = tl.where(is_usual, largest / 127.0, 0.0)
    tl.store(scales_ptr + row, tl.where(is_odd, float("nan"), scale))


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [n, k] and scales fp32 [n], whose product is about x [n, k]. A row that is not finite has the scale NaN."""
    num_rows, dim = x.shape
    assert x.stride(1) == 1, "rows are contiguous"
    quants, scales = x.new_empty(num_rows, dim, dtype=torch.int8), x.new_empty(num_rows, dtype=torch.float32)
    if num_rows > 0:
        block = triton.next_power_of_2(dim)
        num_warps = min(max(block // 512, 1), 16)
        _quantize_row[(num_rows,)](x, quants, scales, x.stride(0), dim, BLOCK=block, num_warps=num_warps)
    return quants, scales
