"""Paged attention on a GPU, accumulated in fp32, whatever mix of prompts' chunks and single tokens a batch holds."""

import torch

from kernels.attention import AttentionBatch
from kernels.triton.attention_chunk import attend_chunks
from kernels.triton.attention_decode import attend_single_queries


def paged_attention(
    q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None = None
) -> torch.Tensor:
    """Causal attention of q [num_tokens, num_heads, head_dim] over the cache; returns q's shape and dtype.

    `kv_layer` [num_blocks, 2, block_size, num_kv_heads, head_dim], of q's dtype and each block contiguous, already
    holds this step's K and V. With `sliding_window` w, a query sees the last w positions, its own among them. Every
    sequence has at least one query. Nothing waits for the device: what is launched depends on shapes alone.
    """
    num_tokens, num_heads, head_dim = q.shape
    assert kv_layer.shape[4] == head_dim and num_heads % kv_layer.shape[3] == 0, "heads that do not fit the cache's"
    assert kv_layer.dtype == q.dtype, f"q is {q.dtype}, the cache {kv_layer.dtype}"
    assert kv_layer[0].is_contiguous() and q.stride(2) == 1, "a block and a head of q are each one run of memory"
    assert sliding_window is None or sliding_window > 0, "a query sees itself"
    assert batch.block_tables.stride(1) == 1, "a block table is one run of memory"
    num_seqs = len(batch.context_lens)
    out = q.new_empty(q.shape)
    if num_seqs > 1 or num_tokens == 1:
        attend_single_queries(q, kv_layer, batch, scale, sliding_window, out)
    if num_tokens > num_seqs:
        attend_chunks(q, kv_layer, batch, scale, sliding_window, out)
    return out
