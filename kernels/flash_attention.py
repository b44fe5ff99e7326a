"""Paged attention by the flash-attn package, where it is installed and the device can run it.

The package reads K and V in place, from blocks of a multiple of 256 slots: a cache with such blocks is one for it.
"""

import torch
from torch.nn import functional

from kernels.attention import AttentionBatch

BLOCK_SIZE = 256
DTYPES = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8  # between two, the package would copy the whole cache to pad it
MIN_CAPABILITY = (8, 0)


def can_attend(device: torch.device | str, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether flash-attn is there and attends on `device` over a cache of this dtype and these heads."""
    if torch.device(device).type != "cuda" or dtype not in DTYPES:
        return False
    if head_dim > MAX_HEAD_DIM or head_dim % HEAD_DIM_STEP:
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY and _is_installed()


def _is_installed() -> bool:
    try:
        import flash_attn  # noqa: F401
    except ImportError:  # also when it was built for another PyTorch
        return False
    return True


def paged_attention(
    q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None = None
) -> torch.Tensor:
    """Causal attention of q [num_tokens, num_heads, head_dim] over the cache; returns q's shape and dtype.

    `kv_layer` [num_blocks, 2, 256, num_kv_heads, head_dim] already holds this step's K and V. With `sliding_window` w,
    a query sees the last w positions, its own among them. Every sequence has at least one query. While PyTorch uses
    deterministic algorithms, no context is split: how it is split otherwise depends on the batch.
    """
    import flash_attn  # here: elsewhere this module is imported where the package is not

    window_size = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    num_tokens, num_seqs = len(q), len(batch.context_lens)
    out: torch.Tensor
    if num_tokens == num_seqs:
        out = flash_attn.flash_attn_with_kvcache(
            q[:, None],  # [num_seqs, 1, num_heads, head_dim]
            kv_layer[:, 0],
            kv_layer[:, 1],
            cache_seqlens=batch.context_lens,
            block_table=batch.block_tables,
            softmax_scale=scale,
            causal=True,
            window_size=window_size,
            num_splits=1 if torch.are_deterministic_algorithms_enabled() else 0,  # 0: as many as fill the device
        )[:, 0]
    else:
        out = flash_attn.flash_attn_varlen_func(
            q,
            kv_layer[:, 0],
            kv_layer[:, 1],
            cu_seqlens_q=batch.cu_seqlens_q,
            cu_seqlens_k=_cu_seqlens_k(batch),
            # Bounds that the host knows without waiting for the device. They size the launch, not the result.
            max_seqlen_q=num_tokens - num_seqs + 1,
            max_seqlen_k=batch.block_tables.shape[1] * kv_layer.shape[2],
            softmax_scale=scale,
            causal=True,
            window_size=window_size,
            block_table=batch.block_tables,
        )
    return out


def _cu_seqlens_k(batch: AttentionBatch) -> torch.Tensor:
    """int32 [num_seqs + 1]: running sum of the contexts, made in the first layer."""
    found: torch.Tensor | None = batch.plans.get("cu_seqlens_k")
    if found is None:
        found = functional.pad(batch.context_lens.cumsum(0, dtype=torch.int32), (1, 0))
        batch.plans["cu_seqlens_k"] = found
    return found
