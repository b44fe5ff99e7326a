"""RMSNorm of rows, alone or with the residual added first. A row is one program's, and is read once."""

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_rows(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    x_stride,
    residual_stride,
    dim,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < dim
    x = tl.load(x_ptr + row * x_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=is_inside, other=0.0)
        total = (x + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * dim + columns, total, mask=is_inside)
        x = total.to(tl.float32)  # the norm is of the sum as the next layer sees it, rounded
    weight = tl.load(weight_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=0) / dim + eps)
    y = (x * inverse * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * dim + columns, y, mask=is_inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., dim] over its root mean square along dim, times `weight` fp32 [dim]; in fp32, returned in x's dtype."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _launch(rows, rows, weight, out, out, eps, has_residual=False)
    return out.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); both inputs [n, dim] in one dtype, neither changed."""
    assert x.shape == residual.shape and x.dtype == residual.dtype, "x and residual are of one shape and dtype"
    out, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    _launch(x, residual, weight, out, total, eps, has_residual=True)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    eps: float,
    *,
    has_residual: bool,
) -> None:
    num_rows, dim = x.shape
    assert x.stride(1) == residual.stride(1) == weight.stride(0) == 1, "rows are contiguous"
    assert weight.shape == (dim,)
    if num_rows == 0:
        return
    block = triton.next_power_of_2(dim)
    _norm_rows[(num_rows,)](
        x,
        residual,
        weight,
        out,
        total,
        x.stride(0),
        residual.stride(0),
        dim,
        eps,
        HAS_RESIDUAL=has_residual,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),  # 16 elements a thread
    )
