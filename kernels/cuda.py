"""The operations on a GPU: Triton's kernels, torch's product of floats, and flash-attn where the cache is cut for it.

Each has the signature of its namesake in `kernels.operations`. Imported where a GPU computes, and by tests.
"""

import torch
from torch.nn import functional

from kernels import flash_attention
from kernels.attention import AttentionBatch
from kernels.quantized import Int4Matrix, Int8Matrix, QuantizedMatrix
from kernels.triton.activation import gelu_and_mul, silu_and_mul
from kernels.triton.attention import paged_attention as triton_attention
from kernels.triton.embedding import embedding, select_rows
from kernels.triton.matmul_int4 import int4_linear
from kernels.triton.matmul_int8 import int8_linear
from kernels.triton.norms import add_rms_norm, rms_norm
from kernels.triton.rotary import rotate_and_store

__all__ = [
    "add_rms_norm",
    "embedding",
    "gated_linear",
    "linear",
    "paged_attention",
    "rms_norm",
    "rotate_and_store",
    "select_rows",
]

ACTIVATIONS = {"silu": silu_and_mul, "gelu": gelu_and_mul}


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedMatrix,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[n, out] in `out_dtype` or x's. Sums of int4 are not cut while PyTorch uses deterministic algorithms: how they
    are cut otherwise depends on the batch. Those of int8 are exact."""
    y: torch.Tensor
    if isinstance(weight, Int8Matrix):
        y = int8_linear(x, weight.rows, weight.scales, bias, out_dtype=out_dtype)
    elif isinstance(weight, Int4Matrix):
        num_splits = 1 if torch.are_deterministic_algorithms_enabled() else None
        y = int4_linear(x, weight.packed, weight.scales, weight.zeros, bias, out_dtype=out_dtype, num_splits=num_splits)
    else:
        y = functional.linear(x, weight, bias).to(out_dtype or x.dtype)
    return y


def gated_linear(x: torch.Tensor, weight: torch.Tensor | QuantizedMatrix, activation: str) -> torch.Tensor:
    """[n, out / 2] in x's dtype."""
    gated: torch.Tensor = ACTIVATIONS[activation](linear(x, weight))
    return gated


def paged_attention(
    q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None = None
) -> torch.Tensor:
    """[n, num_heads, head_dim] of the same. The cache's block size says whose it is: see `attention_block_size`."""
    if kv_layer.shape[2] == flash_attention.BLOCK_SIZE:
        return flash_attention.paged_attention(q, kv_layer, batch, scale, sliding_window)
    return triton_attention(q, kv_layer, batch, scale, sliding_window)
