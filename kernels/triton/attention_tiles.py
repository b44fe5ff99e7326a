"""What both attention kernels do with keys: read them from their blocks, tile by tile, and add up what they give.

Tiles start at multiples of their size, whatever the query: every sum over keys has one order, in a chunk of any length.
"""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634  # exp(x) = exp2(LOG2_E * x), and a GPU has exp2
MIN_ROWS = 16  # of a matrix product
MAX_TILE_BYTES = 16384  # of K; K and V of two tiles are on their way while one is computed with


def tile_size(head_dim: int, element_bytes: int) -> int:
    """Keys in a tile: 64 at most, and what shared memory has room for."""
    return max(MIN_ROWS, min(64, MAX_TILE_BYTES // (padded(head_dim) * element_bytes)))


def padded(count: int) -> int:
    """The power of two that a matrix product takes for `count` rows or columns."""
    return int(max(MIN_ROWS, triton.next_power_of_2(count)))


@triton.jit
def first_seen(position, SLIDING_WINDOW: tl.constexpr):
    """The first position that a query at `position` sees; a window of 0 has no end."""
    if SLIDING_WINDOW == 0:
        return position * 0
    return tl.maximum(position + 1 - SLIDING_WINDOW, 0)


@triton.jit
def attend_keys(
    q,
    positions,
    start,
    end,
    lowest,
    scale,
    kv_head_ptr,
    block_table_ptr,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    TILE: tl.constexpr,
):
    """`top`, `total` and `out`, as `_add_tile` has them, of queries q [ROWS, PADDED_DIM] over the keys from `start`,
    where a tile begins, to `end`. Their `positions` are [ROWS], or [1] of all; none of them sees a key below `lowest`.
    A token's K or V is TOKEN_STRIDE elements; `kv_head_ptr` is the KV head's part of the first."""
    top = tl.full([q.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([q.shape[0]], tl.float32)
    out = tl.zeros([q.shape[0], q.shape[1]], tl.float32)
    for tile_start in range(start, end, TILE):
        keys = tile_start + tl.arange(0, TILE)
        is_read = (keys >= lowest) & (keys < end)
        block_ids = tl.load(block_table_ptr + keys // BLOCK_SIZE, mask=is_read, other=0).to(tl.int64)
        slots = block_ids * block_stride + (keys % BLOCK_SIZE) * TOKEN_STRIDE
        k, v = _read_tile(kv_head_ptr, slots, is_read, BLOCK_SIZE * TOKEN_STRIDE, HEAD_DIM, q.shape[1])
        is_seen = keys[None, :] <= positions[:, None]
        if SLIDING_WINDOW > 0:
            is_seen &= keys[None, :] > positions[:, None] - SLIDING_WINDOW
        top, total, out = _add_tile(q, k, v, is_seen, scale, top, total, out)
    return top, total, out


@triton.jit
def _read_tile(kv_head_ptr, slots, is_read, V_OFFSET: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr):
    """K and V [TILE, PADDED_DIM] of one KV head in `slots` [TILE]; zeros where a key is not read."""
    dims = tl.arange(0, PADDED_DIM)
    pointers = kv_head_ptr + slots[:, None] + dims[None, :]
    mask = is_read[:, None] & (dims[None, :] < HEAD_DIM)
    return tl.load(pointers, mask=mask, other=0.0), tl.load(pointers + V_OFFSET, mask=mask, other=0.0)


@triton.jit
def _add_tile(q, k, v, is_seen, scale, top, total, out):
    """`top` and `total` fp32 [ROWS] and `out` fp32 [ROWS, PADDED_DIM] after one more tile: the running maximum of the
    scores, and the sums of weights and weighted V relative to it. `scale` is for exp2. A row that sees nothing of the
    tile, `is_seen` [ROWS, TILE], keeps its bits."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(is_seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet: no difference of infinities
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_top, total, out
