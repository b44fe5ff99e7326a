"""Paged attention of sequences with one query each, a program per KV head and split of the context: reading a long
context keeps the whole GPU busy. A second kernel merges what the splits of a query found.

Where a context is split depends on its own length alone, so a query has the same bits in every batch.
"""

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionBatch
from kernels.triton.attention_tiles import LOG2_E, attend_keys, first_seen, padded, tile_size

MIN_SPLIT = 256  # tokens; a multiple of every tile size
MANY_PROGRAMS = 256  # that keep a GPU busy, one sequence's splits and KV heads together


def attend_single_queries(
    q: torch.Tensor,
    kv_layer: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    out: torch.Tensor,
) -> None:
    """Fill the rows of `out` [num_tokens, num_heads, head_dim] whose sequence has no other; leave the others alone."""
    num_seqs, (_, num_heads, head_dim) = len(batch.context_lens), q.shape
    block_size, num_kv_heads = kv_layer.shape[2:4]
    tile = tile_size(head_dim, q.element_size())
    max_splits = min(64, max(8, MANY_PROGRAMS // triton.next_power_of_2(num_kv_heads)))
    longest = batch.block_tables.shape[1] * block_size
    if sliding_window is not None:
        longest = min(longest, sliding_window + tile)
    num_splits = min(max_splits, triton.cdiv(longest, MIN_SPLIT))
    partial = q.new_empty((num_seqs, num_heads, num_splits, head_dim), dtype=torch.float32)
    log_sums = q.new_empty((num_seqs, num_heads, num_splits), dtype=torch.float32)
    of_context = {"SLIDING_WINDOW": sliding_window or 0, "TILE": tile, "MIN_SPLIT": MIN_SPLIT, "MAX_SPLITS": max_splits}
    _attend_split[(num_seqs, num_kv_heads, num_splits)](
        q,
        kv_layer,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.context_lens,
        partial,
        log_sums,
        scale * LOG2_E,
        q.stride(0),
        q.stride(1),
        kv_layer.stride(0),
        batch.block_tables.stride(0),
        num_splits,
        BLOCK_SIZE=block_size,
        NUM_KV_HEADS=num_kv_heads,
        HEADS_PER_KV=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_HEADS=padded(num_heads // num_kv_heads),
        PADDED_DIM=padded(head_dim),
        **of_context,
    )
    _merge_splits[(num_seqs, num_heads)](
        partial,
        log_sums,
        batch.cu_seqlens_q,
        batch.context_lens,
        out,
        num_splits,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded(head_dim),
        PADDED_SPLITS=triton.next_power_of_2(num_splits),
        **of_context,
    )


@triton.jit
def _find_query(seq, cu_seqlens_q_ptr, context_lens_ptr):
    """The row of a sequence's one query, and the length of its context; 0 where the sequence has several."""
    row = tl.load(cu_seqlens_q_ptr + seq).to(tl.int64)
    is_single = tl.load(cu_seqlens_q_ptr + seq + 1) - row == 1
    return row, tl.load(context_lens_ptr + seq, mask=is_single, other=0)


@triton.jit
def _cut(
    context_len,
    SLIDING_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """The first key of the first tile that a sequence's last token sees, and the keys in a split, whole tiles."""
    first = first_seen(context_len - 1, SLIDING_WINDOW) // TILE * TILE
    share = tl.cdiv(context_len - first, MAX_SPLITS)
    return first, tl.maximum(tl.cdiv(share, TILE) * TILE, MIN_SPLIT)


@triton.jit(do_not_specialize=["num_splits"])
def _attend_split(
    q_ptr,
    kv_layer_ptr,
    block_tables_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    partial_ptr,
    log_sums_ptr,
    scale,
    q_row_stride,
    q_head_stride,
    block_stride,
    table_stride,
    num_splits,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """`partial` [num_seqs, num_heads, num_splits, head_dim]: attention over one split of the keys; `log_sums` beside
    it: log2 of the split's sum of exponentials."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    row, context_len = _find_query(seq, cu_seqlens_q_ptr, context_lens_ptr)
    first, split_len = _cut(context_len, SLIDING_WINDOW, TILE, MIN_SPLIT, MAX_SPLITS)
    start = first + split * split_len
    if start >= context_len:
        return
    end = tl.minimum(start + split_len, context_len)
    position = context_len - 1

    index, dims = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_DIM)
    heads = kv_head * HEADS_PER_KV + index
    mask = (index[:, None] < HEADS_PER_KV) & (dims[None, :] < HEAD_DIM)
    q_tile = tl.load(q_ptr + row * q_row_stride + heads[:, None] * q_head_stride + dims[None, :], mask=mask, other=0.0)
    top, total, out = attend_keys(
        q_tile, tl.full([1], position, tl.int32), start, end, first_seen(position, SLIDING_WINDOW), scale,
        kv_layer_ptr + kv_head * HEAD_DIM, block_tables_ptr + seq * table_stride, block_stride,
        BLOCK_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM, SLIDING_WINDOW, TILE,
    )  # fmt: skip
    at = (seq * NUM_KV_HEADS * HEADS_PER_KV + heads) * num_splits + split
    tl.store(partial_ptr + at[:, None] * HEAD_DIM + dims[None, :], out / total[:, None], mask=mask)
    tl.store(log_sums_ptr + at, top + tl.log2(total), mask=index < HEADS_PER_KV)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_splits(
    partial_ptr,
    log_sums_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    out_ptr,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """`out` [num_tokens, num_heads, head_dim], of one query and head: the mean of its splits by their sums."""
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, context_len = _find_query(seq, cu_seqlens_q_ptr, context_lens_ptr)
    if context_len == 0:
        return
    first, split_len = _cut(context_len, SLIDING_WINDOW, TILE, MIN_SPLIT, MAX_SPLITS)
    splits, dims = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_DIM)
    is_used = splits < tl.cdiv(context_len - first, split_len)
    at = (seq * NUM_HEADS + head) * num_splits + splits
    log_sum = tl.load(log_sums_ptr + at, mask=is_used, other=float("-inf"))
    weights = tl.exp2(log_sum - tl.max(log_sum, 0))
    mask = is_used[:, None] & (dims[None, :] < HEAD_DIM)
    parts = tl.load(partial_ptr + at[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    merged = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    pointers = out_ptr + (row * NUM_HEADS + head) * HEAD_DIM + dims
    tl.store(pointers, merged.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
