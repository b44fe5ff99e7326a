"""SiLU and GELU of gates times what they gate, in fp32, rounded once."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _gate_rows(x_ptr, out_ptr, x_stride, dim, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < dim
    gate = tl.load(x_ptr + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + dim + columns, mask=is_inside, other=0.0).to(tl.float32)
    slope = gate
    if IS_GELU:
        # (1 + tanh(u)) / 2 is the sigmoid of 2 u, which keeps its digits where tanh(u) is near -1.
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # twice sqrt(2 / pi)
    y = gate / (1.0 + tl.exp(-slope)) * up
    tl.store(out_ptr + row * dim + columns, y.to(out_ptr.dtype.element_ty), mask=is_inside)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x [n, 2 * dim] = gate beside up; returns [n, dim]."""
    return _launch(x, is_gelu=False)


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up for x [n, 2 * dim] = gate beside up, GELU in its tanh form; returns [n, dim]."""
    return _launch(x, is_gelu=True)


def _launch(x: torch.Tensor, *, is_gelu: bool) -> torch.Tensor:
    num_rows, dim = x.shape[0], x.shape[1] // 2
    assert x.stride(1) == 1 and x.shape[1] == 2 * dim, "a row is as many gates as what they gate, contiguous"
    out = x.new_empty(num_rows, dim)
    if num_rows > 0:
        grid = (num_rows, triton.cdiv(dim, BLOCK))
        _gate_rows[grid](x, out, x.stride(0), dim, IS_GELU=is_gelu, BLOCK=BLOCK, num_warps=4)
    return out
