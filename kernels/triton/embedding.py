"""Rows of a matrix by their index: tokens of a vocabulary, scaled or not, or rows of a batch."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _copy_rows(matrix_ptr, ids_ptr, out_ptr, matrix_stride, dim, scale, HAS_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < dim
    source = tl.load(ids_ptr + row).to(tl.int64)
    values = tl.load(matrix_ptr + source * matrix_stride + columns, mask=is_inside)
    if HAS_SCALE:
        values = (values.to(tl.float32) * scale).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * dim + columns, values, mask=is_inside)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Rows of `weight` [vocab_size, hidden] at `token_ids` int64 [n], times `scale` rounded to the weight's dtype."""
    if scale is not None:
        scale = float(torch.tensor(scale, dtype=weight.dtype))
    return _launch(weight, token_ids, scale)


def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of x [n, dim] at `rows` int64 [num_rows], copied."""
    return _launch(x, rows, None)


def _launch(matrix: torch.Tensor, ids: torch.Tensor, scale: float | None) -> torch.Tensor:
    num_rows, dim = len(ids), matrix.shape[1]
    assert matrix.stride(1) == 1 and ids.is_contiguous(), "rows and ids are contiguous"
    out = matrix.new_empty(num_rows, dim)
    if num_rows > 0:
        grid = (num_rows, triton.cdiv(dim, BLOCK))
        factor = 1.0 if scale is None else scale
        _copy_rows[grid](
            matrix, ids, out, matrix.stride(0), dim, factor, HAS_SCALE=scale is not None, BLOCK=BLOCK, num_warps=4
        )
    return out
