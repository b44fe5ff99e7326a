"""A module like flash-attn, for machines that cannot run it: its signatures and its checks; the reference computes.

The checks are those of `flash_attn/flash_attn_interface.py` and `csrc/flash_attn/flash_api.cpp`, versions 2.7 and 2.8,
as far as they do not ask for a CUDA device. What is refused there with another message is refused here.
"""

from types import ModuleType
from typing import Any

import torch

from kernels import AttentionBatch, reference_attention

MODULE = "flash_attn"
REFERENCE_BLOCK_SIZE = 128  # the reference's blocks are no larger than its tiles


class StandIn(ModuleType):
    """What `import flash_attn` gives; `calls` has the name and the named arguments of each call."""

    def __init__(self) -> None:
        super().__init__(MODULE)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def flash_attn_varlen_func(
        self,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        self.calls.append(("flash_attn_varlen_func", {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}))
        check(not (dropout_p or softcap or return_attn_probs), "only what the engine uses is computed here")
        check(alibi_slopes is None and block_table is not None, "only what the engine uses is computed here")
        check_tensors(q, k, v, block_table)
        check(isinstance(max_seqlen_q, int) and isinstance(max_seqlen_k, int), "incompatible function arguments")
        for name, lens in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
            check(lens.dtype == torch.int32, f"{name} must have dtype int32")
            check(lens.is_contiguous(), f"{name} must be contiguous")
        batch_size = cu_seqlens_q.numel() - 1
        check(batch_size > 0, "batch size must be positive")
        check_shape("cu_seqlens_k", cu_seqlens_k, batch_size + 1)
        check_shape("block_table", block_table, batch_size, block_table.shape[1])
        num_queries, lens_k = cu_seqlens_q.diff(), cu_seqlens_k.diff()
        # The launch covers no more than these: what is longer would be left out, or read past the table.
        check(int(num_queries.max()) <= max_seqlen_q, "max_seqlen_q is less than the longest chunk")
        check(int(lens_k.max()) <= max_seqlen_k, "max_seqlen_k is less than the longest context")
        check(max_seqlen_k <= block_table.shape[1] * k.shape[1], "keys past the block table")
        check(int(cu_seqlens_q[-1]) == len(q), "rows of q that no sequence has")
        window = sliding_window(window_size, max_seqlen_k=max_seqlen_k, is_causal=causal, max_seqlen_q=max_seqlen_q)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        return attend(q, k, v, cu_seqlens_q, lens_k, block_table, scale, window)

    def flash_attn_with_kvcache(
        self,
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens: int | torch.Tensor | None = None,
        cache_batch_idx: torch.Tensor | None = None,
        cache_leftpad: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        rotary_interleaved=True,
        alibi_slopes=None,
        num_splits=0,
        return_softmax_lse=False,
    ):
        self.calls.append(("flash_attn_with_kvcache", {"num_splits": num_splits}))
        check(all(x is None for x in (k, v, rotary_cos, rotary_sin, alibi_slopes)), "only what the engine uses")
        check(cache_batch_idx is None, "Paged KVcache does not support cache_batch_idx")
        check(cache_leftpad is None, "We don't support Paged KV and leftpad_k running at the same time yet")
        check(not (softcap or return_softmax_lse) and block_table is not None, "only what the engine uses")
        check(k_cache.stride(-1) == 1, "k_cache must have contiguous last dimension")
        check(v_cache.stride(-1) == 1, "v_cache must have contiguous last dimension")
        check(q.dim() == 4, "q is batch_size x seqlen_q x num_heads x head_size")
        batch_size, num_queries = q.shape[:2]
        check_tensors(q.flatten(0, 1), k_cache, v_cache, block_table)
        check_shape("block_table", block_table, batch_size, block_table.shape[1])
        capacity = block_table.shape[1] * k_cache.shape[1]
        if isinstance(cache_seqlens, int):
            cache_seqlens = torch.full((batch_size,), cache_seqlens, dtype=torch.int32)
        check(cache_seqlens.dtype == torch.int32, "seqlens_k must have dtype int32")
        check(cache_seqlens.is_contiguous(), "seqlens_k must be contiguous")
        check_shape("seqlens_k", cache_seqlens, batch_size)
        check(int(cache_seqlens.max()) <= capacity, "exceeds the capacity addressable by block_table")
        check(0 <= num_splits <= 128, "num_splits > 128 not supported")
        window = sliding_window(window_size, max_seqlen_k=capacity, is_causal=causal, max_seqlen_q=num_queries)
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32) * num_queries
        out = attend(q.flatten(0, 1), k_cache, v_cache, cu_seqlens_q, cache_seqlens, block_table, scale, window)
        return out.view(q.shape)


def check(is_right: bool, message: str) -> None:
    """TORCH_CHECK, which raises RuntimeError."""
    if not is_right:
        raise RuntimeError(message)


def check_shape(name: str, x: torch.Tensor, *shape: int) -> None:
    check(tuple(x.shape) == shape, f"{name} must have shape {shape}")


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_table: torch.Tensor) -> None:
    """What both functions ask of q [total_q, num_heads, head_size] and a paged cache."""
    check(q.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
    check(k.dtype == q.dtype, "query and key must have the same dtype")
    check(v.dtype == q.dtype, "query and value must have the same dtype")
    check(block_table.dtype == torch.int32, "block_table must have dtype torch.int32")
    check(block_table.stride(-1) == 1, "block_table must have contiguous last dimension")
    check(all(x.stride(-1) == 1 for x in (q, k, v)), "Input tensor must have contiguous last dimension")
    check(q.dim() == 3 and k.dim() == 4, "q is total_q x num_heads x head_size, k and v are paged")
    num_blocks, page_block_size, num_heads_k, head_size = k.shape
    check(page_block_size % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check(q.shape[0] > 0, "batch size must be positive")
    check(head_size <= 256, "FlashAttention forward only supports head dimension at most 256")
    check(head_size % 8 == 0, "query, key, value, and out_ must have a head_size that is a multiple of 8")
    check(q.shape[1] % num_heads_k == 0, "Number of heads in key/value must divide number of heads in query")
    check_shape("q", q, *q.shape[:2], head_size)
    check_shape("v", v, num_blocks, page_block_size, num_heads_k, head_size)


def sliding_window(
    window_size: tuple[int, int], *, max_seqlen_k: int, is_causal: bool, max_seqlen_q: int
) -> int | None:
    """The reference's window for `window_size`, keys before and after a query that it sees; -1 is all of them."""
    left, right = window_size
    check(is_causal or max_seqlen_q == 1, "only causal attention is computed here")
    if max_seqlen_q == 1:
        # There, a single query is not causal: it sees what the window on its right, and its context, let it see.
        is_causal = False
    right = 0 if is_causal else right
    check(right <= 0, "only causal attention is computed here")
    return None if left < 0 or left >= max_seqlen_k else left + 1


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    lens_k: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """The reference over the same cache, each block of which is several of its own."""
    num_parts = k.shape[1] // REFERENCE_BLOCK_SIZE
    blocks = torch.stack((k, v), 1).unflatten(2, (num_parts, REFERENCE_BLOCK_SIZE))
    parts = block_table[:, :, None] * num_parts + torch.arange(num_parts, dtype=torch.int32)
    batch = AttentionBatch(
        slot_mapping=torch.empty(0, dtype=torch.int64),
        block_tables=parts.flatten(1),
        cu_seqlens_q=cu_seqlens_q,
        context_lens=lens_k,
    )
    return reference_attention.paged_attention(q, blocks.transpose(1, 2).flatten(0, 1), batch, scale, window)
