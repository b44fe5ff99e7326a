"""The operations in plain PyTorch: the truth that faster backends are held to, and what computes where there is none.

A row's result depends on that row alone, to the last bit: not on how many rows are computed with it, nor on where among
them it stands, nor on the number of threads. Most element-wise operations and norms have this by nature, `linear` and
the activations by the way they cut their rows.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from kernels import int8_kv, reference_quantized
from kernels.attention import head_dim_of
from kernels.quantized import Int4Matrix, Int8Matrix, QuantizedMatrix

# BLAS libraries choose their loops by the sizes of a product, and by them the order in which they add. In multiples of
# 16 rows, with the weight as the left matrix, the choice was the same in every shape, dtype and number of threads
# measured, on AMD's and Intel's processors, but those below; of other numbers it is not, nor of fewer outputs. Tiles of
# 32 cost as much as one large product or less.
LINEAR_ROWS, MAX_LINEAR_ROWS = 16, 32
# With few outputs and more rows, odd numbers of threads also share the sums themselves.
FEW_OUTPUTS = 512

# PyTorch shares a larger tensor among its CPU threads and cuts it in the middle of a row. The elements left over before
# a cut are too few for a vector, and SiLU and GELU of one element are computed by another formula than of a vector.
MAX_SERIAL_ELEMENTS = 16384


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Rows of `weight` [vocab_size, hidden] at `token_ids` int64 [n], times `scale` rounded to the weight's dtype."""
    rows = select_rows(weight, token_ids)
    return rows if scale is None else rows * torch.tensor(scale, dtype=weight.dtype)


def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of x [n, dim] at `rows` int64 [num_rows], copied."""
    return x.index_select(0, rows)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedMatrix,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`x @ weight.T + bias`, [n, out] in `out_dtype` or x's: x [n, in], weight [out, in], bias [out]."""
    if isinstance(weight, Int8Matrix):
        return reference_quantized.int8_linear(x, weight.rows, weight.scales, bias, out_dtype=out_dtype)
    if isinstance(weight, Int4Matrix):
        return reference_quantized.int4_linear(x, weight.packed, weight.scales, weight.zeros, bias, out_dtype=out_dtype)
    num_out = weight.shape[0]
    y = x.new_empty(x.shape[0], num_out, dtype=out_dtype)
    max_rows = MAX_LINEAR_ROWS if num_out > FEW_OUTPUTS else LINEAR_ROWS
    weight = weight if num_out >= LINEAR_ROWS else fill_up(weight)
    for start in range(0, x.shape[0], max_rows):
        rows = x[start : start + max_rows]
        num_rows = rows.shape[0]
        y[start : start + num_rows] = torch.mm(weight, fill_up(rows).T).T[:num_rows, :num_out]
    return y if bias is None else y.add_(bias)


def fill_up(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix` [..., n, dim], with rows of zeros behind its own up to a multiple of `LINEAR_ROWS`."""
    num_missing = -matrix.shape[-2] % LINEAR_ROWS
    return functional.pad(matrix, (0, 0, 0, num_missing)) if num_missing else matrix


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., dim] over its root mean square along dim, times `weight` fp32 [dim]; in fp32, returned in x's dtype."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * inverse).mul_(weight).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); both inputs [n, dim] in one dtype, neither changed."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rotary_cos_sin(positions: torch.Tensor, inv_freq: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """fp32 [n, 2, head_dim / 2]: cosine and sine of positions int64 [n] times inv_freq fp32 [head_dim / 2], scaled."""
    angles = positions.float()[:, None] * inv_freq
    return torch.stack((angles.cos(), angles.sin()), dim=1) * scale


def apply_rotary(q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, num_heads, head_dim] and k [n, num_kv_heads, head_dim] rotated by `rotary_cos_sin` of their positions.

    Element i of a head's first half turns with element i of its second half, as Hugging Face lays them out.
    """
    cos, sin = cos_sin[:, None, 0], cos_sin[:, None, 1]  # [n, 1, head_dim / 2]
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotate_and_store(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_layer: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Q of every token, rotated, [n, num_heads * head_dim]; its K, rotated, and V are stored at their slots.

    `qkv` is [n, (num_heads + 2 * num_kv_heads) * head_dim]. The norms, fp32 [head_dim], are of each head.
    """
    num_kv_heads, head_dim = kv_layer.shape[3], head_dim_of(kv_layer)
    heads = qkv.view(len(qkv), -1, head_dim)
    q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    q = q if q_norm is None else rms_norm(q, q_norm, eps)
    k = k if k_norm is None else rms_norm(k, k_norm, eps)
    q, k = apply_rotary(q, k, cos_sin)
    store_kv(k, v, kv_layer, slot_mapping)
    return q.flatten(1)


def store_kv(k: torch.Tensor, v: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write k and v [n, num_kv_heads, head_dim] into `kv_layer` [num_blocks, 2, block_size, ...] at their slots."""
    if kv_layer.dtype == torch.int8:
        k, v = int8_kv.quantize(k), int8_kv.quantize(v)
    block_size = kv_layer.shape[2]
    block_ids, offsets = slot_mapping // block_size, slot_mapping % block_size
    kv_layer[block_ids, 0, offsets] = k
    kv_layer[block_ids, 1, offsets] = v


def gated_linear(x: torch.Tensor, weight: torch.Tensor | QuantizedMatrix, activation: str) -> torch.Tensor:
    """activation(gate) * up, [n, dim]: `linear` by a weight of gates and ups [2 * dim, in]; silu or gelu (tanh)."""
    return {"silu": silu_and_mul, "gelu": gelu_and_mul}[activation](linear(x, weight))


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x [n, 2 * dim] = gate beside up; returns [n, dim]."""
    return _activate_and_mul(x, functional.silu)


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up for x [n, 2 * dim] = gate beside up, GELU in its tanh form; returns [n, dim]."""
    return _activate_and_mul(x, partial(functional.gelu, approximate="tanh"))


def _activate_and_mul(x: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    n, dim = x.shape[0], x.shape[1] // 2
    y = x.new_empty(n, dim)
    num_rows = max(1, MAX_SERIAL_ELEMENTS // dim) if x.is_cpu else max(1, n)
    for start in range(0, n, num_rows):
        gate, up = x[start : start + num_rows].chunk(2, dim=-1)
        torch.mul(activation(gate), up, out=y[start : start + num_rows])
    return y
