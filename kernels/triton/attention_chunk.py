"""Paged attention of sequences with several queries each, a program per KV head and tile of consecutive queries, all
heads that share the KV head together: a key is read once for all of them."""

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionBatch
from kernels.triton.attention_tiles import LOG2_E, attend_keys, first_seen, padded, tile_size

MAX_ROWS = 64  # queries times heads of a tile, unless more heads share a KV head
MAX_ROW_BYTES = 512  # of a Q tile with MAX_ROWS; shared memory has room for half of them where they are longer


def attend_chunks(
    q: torch.Tensor,
    kv_layer: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    out: torch.Tensor,
) -> None:
    """Fill the rows of `out` [num_tokens, num_heads, head_dim] whose sequence has several; leave the others alone."""
    num_seqs, (num_tokens, num_heads, head_dim) = len(batch.context_lens), q.shape
    block_size, num_kv_heads = kv_layer.shape[2:4]
    heads_per_kv = num_heads // num_kv_heads
    is_long = padded(head_dim) * q.element_size() > MAX_ROW_BYTES
    num_rows = max(MAX_ROWS // 2 if is_long else MAX_ROWS, triton.next_power_of_2(heads_per_kv))
    tile_queries = num_rows // heads_per_kv
    # The host does not know how long each chunk is: every sequence may end with a tile that is not full.
    _attend_tile[(num_tokens // tile_queries + num_seqs, num_kv_heads)](
        q,
        kv_layer,
        batch.block_tables,
        batch.cu_seqlens_q,
        batch.context_lens,
        out,
        scale * LOG2_E,
        num_seqs,
        q.stride(0),
        q.stride(1),
        kv_layer.stride(0),
        batch.block_tables.stride(0),
        BLOCK_SIZE=block_size,
        NUM_KV_HEADS=num_kv_heads,
        HEADS_PER_KV=heads_per_kv,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded(head_dim),
        NUM_ROWS=num_rows,
        TILE_QUERIES=tile_queries,
        SLIDING_WINDOW=sliding_window or 0,
        TILE=tile_size(head_dim, q.element_size()),
    )


@triton.jit
def _find_seq(cu_seqlens_q_ptr, num_seqs, tile_id, TILE_QUERIES: tl.constexpr):
    """The sequence of a tile: the last whose first tile, row / TILE_QUERIES + sequences before it, is not later."""
    low, high = num_seqs * 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        is_later = tl.load(cu_seqlens_q_ptr + middle) // TILE_QUERIES + middle > tile_id
        low = tl.where(is_later, low, middle)
        high = tl.where(is_later, middle, high)
    return low


@triton.jit
def _find_queries(tile_id, cu_seqlens_q_ptr, context_lens_ptr, num_seqs, TILE_QUERIES: tl.constexpr):
    """Of a tile: its sequence, the row and the position of its first query, and how many it has; perhaps none."""
    seq = _find_seq(cu_seqlens_q_ptr, num_seqs, tile_id, TILE_QUERIES)
    first_row = tl.load(cu_seqlens_q_ptr + seq)
    num_queries = tl.load(cu_seqlens_q_ptr + seq + 1) - first_row
    first_query = (tile_id - first_row // TILE_QUERIES - seq) * TILE_QUERIES
    first_position = tl.load(context_lens_ptr + seq) - num_queries + first_query
    num_left = tl.where(num_queries == 1, 0, num_queries - first_query)  # a single one is `attention_decode`'s
    return seq, first_row + first_query, first_position, tl.minimum(num_left, TILE_QUERIES)


@triton.jit(do_not_specialize=["num_seqs"])
def _attend_tile(
    q_ptr,
    kv_layer_ptr,
    block_tables_ptr,
    cu_seqlens_q_ptr,
    context_lens_ptr,
    out_ptr,
    scale,
    num_seqs,
    q_row_stride,
    q_head_stride,
    block_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
):
    """`out` [num_tokens, num_heads, head_dim] of TILE_QUERIES queries and the heads of one KV head."""
    kv_head = tl.program_id(1)
    seq, first_row, first_position, num_queries = _find_queries(
        tl.program_id(0), cu_seqlens_q_ptr, context_lens_ptr, num_seqs, TILE_QUERIES
    )
    if num_queries <= 0:
        return
    lowest = first_seen(first_position, SLIDING_WINDOW)

    rows, dims = tl.arange(0, NUM_ROWS), tl.arange(0, PADDED_DIM)
    queries, heads = rows // HEADS_PER_KV, kv_head * HEADS_PER_KV + rows % HEADS_PER_KV
    is_row = queries < num_queries
    mask = is_row[:, None] & (dims[None, :] < HEAD_DIM)
    tokens = (first_row + queries).to(tl.int64)
    q_offsets = tokens * q_row_stride + heads * q_head_stride
    q_tile = tl.load(q_ptr + q_offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    _, total, result = attend_keys(
        q_tile, first_position + queries, lowest // TILE * TILE, first_position + num_queries, lowest, scale,
        kv_layer_ptr + kv_head * HEAD_DIM, block_tables_ptr + seq.to(tl.int64) * table_stride, block_stride,
        BLOCK_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM, SLIDING_WINDOW, TILE,
    )  # fmt: skip

    result = result / tl.where(is_row, total, 1.0)[:, None]
    pointers = out_ptr + (tokens * (NUM_KV_HEADS * HEADS_PER_KV) + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(pointers, result.to(out_ptr.dtype.element_ty), mask=mask)
