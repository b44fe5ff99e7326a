"""What both attention kernels do with a tile of keys: read it from its blocks, and add it to what was seen before.

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
def read_tile(
    kv_layer_ptr,
    block_table_ptr,
    keys,
    is_read,
    kv_head,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """K and V [TILE, PADDED_DIM] of positions `keys` [TILE] of one KV head; zeros where a key is not read."""
    block_ids = tl.load(block_table_ptr + keys // BLOCK_SIZE, mask=is_read, other=0).to(tl.int64)
    slots = block_ids * block_stride + ((keys % BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
    dims = tl.arange(0, PADDED_DIM)
    pointers = kv_layer_ptr + slots[:, None] + dims[None, :]
    mask = is_read[:, None] & (dims[None, :] < HEAD_DIM)
    k = tl.load(pointers, mask=mask, other=0.0)
    v = tl.load(pointers + BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM, mask=mask, other=0.0)
    return k, v


@triton.jit
def add_tile(q, k, v, is_seen, scale, top, total, out):
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
