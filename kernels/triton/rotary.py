"""What stands between the QKV projection and attention, in one pass: norms of heads, rotation, and the cache write."""

import torch
import triton
import triton.language as tl

HEADS_AT_ONCE = 4


@triton.jit
def _norm(is_normed, first, second, inverse, weight_ptr, column, half, dtype: tl.constexpr):
    """Both halves of heads, fp32, normed where `is_normed`. Rounded to `dtype`, as the reference's norm is."""
    normed_first = first * inverse * tl.load(weight_ptr + column, mask=column < half, other=0.0)
    normed_second = second * inverse * tl.load(weight_ptr + half + column, mask=column < half, other=0.0)
    first = tl.where(is_normed, normed_first.to(dtype).to(tl.float32), first)
    second = tl.where(is_normed, normed_second.to(dtype).to(tl.float32), second)
    return first, second


@triton.jit
def _rotate_and_store(
    qkv_ptr,
    cos_sin_ptr,
    cache_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    qkv_stride,
    block_stride,
    kv_stride,
    slot_stride,
    head_stride,
    block_size,
    num_heads,
    num_kv_heads,
    eps,
    head_dim: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """One token's heads, HEADS of them: rows of a tile, which may be of Q, K and V at once."""
    half: tl.constexpr = head_dim // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    is_inside = (head < num_heads + 2 * num_kv_heads) & (column < half)
    is_q, is_v = head < num_heads, head >= num_heads + num_kv_heads
    is_k = ~is_q & ~is_v

    x_ptrs = qkv_ptr + token * qkv_stride + head * head_dim + column
    first = tl.load(x_ptrs, mask=is_inside, other=0.0)
    second = tl.load(x_ptrs + half, mask=is_inside, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    if HAS_Q_NORM or HAS_K_NORM:
        squares = tl.sum(wide_first * wide_first + wide_second * wide_second, axis=1)[:, None]
        inverse = tl.rsqrt(squares / head_dim + eps)
    if HAS_Q_NORM:
        wide_first, wide_second = _norm(is_q, wide_first, wide_second, inverse, q_norm_ptr, column, half, first.dtype)
    if HAS_K_NORM:
        wide_first, wide_second = _norm(is_k, wide_first, wide_second, inverse, k_norm_ptr, column, half, first.dtype)

    cos = tl.load(cos_sin_ptr + token * head_dim + column, mask=column < half, other=0.0)
    sin = tl.load(cos_sin_ptr + token * head_dim + half + column, mask=column < half, other=0.0)
    rotated_first = (wide_first * cos - wide_second * sin).to(first.dtype)
    rotated_second = (wide_second * cos + wide_first * sin).to(first.dtype)
    first = tl.where(is_v, first, rotated_first)
    second = tl.where(is_v, second, rotated_second)

    q_ptrs = q_ptr + (token * num_heads + head) * head_dim + column
    tl.store(q_ptrs, first, mask=is_inside & is_q)
    tl.store(q_ptrs + half, second, mask=is_inside & is_q)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    kv_head = tl.where(is_v, head - num_heads - num_kv_heads, head - num_heads).to(tl.int64)
    cache_ptrs = cache_ptr + slot // block_size * block_stride + slot % block_size * slot_stride
    cache_ptrs = cache_ptrs + tl.where(is_v, kv_stride, 0) + kv_head * head_stride + column
    tl.store(cache_ptrs, first, mask=is_inside & (head >= num_heads))
    tl.store(cache_ptrs + half, second, mask=is_inside & (head >= num_heads))


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

    `qkv` is [n, (num_heads + 2 * num_kv_heads) * head_dim], `cos_sin` fp32 [n, 2, head_dim / 2], `kv_layer`
    [num_blocks, 2, block_size, num_kv_heads, head_dim], slots int64 [n], none of them negative. The norms, fp32
    [head_dim], are of each head.
    """
    block_size, num_kv_heads, head_dim = kv_layer.shape[2:]
    num_all_heads = num_heads + 2 * num_kv_heads
    assert qkv.shape == (len(slot_mapping), num_all_heads * head_dim) and head_dim % 2 == 0
    assert cos_sin.shape == (len(qkv), 2, head_dim // 2) and cos_sin.is_contiguous()
    assert qkv.dtype == kv_layer.dtype and qkv.stride(1) == kv_layer.stride(4) == 1 and slot_mapping.is_contiguous()
    q = qkv.new_empty(len(qkv), num_heads * head_dim)
    if len(qkv) == 0:
        return q
    _rotate_and_store[(len(qkv), triton.cdiv(num_all_heads, HEADS_AT_ONCE))](
        qkv,
        cos_sin,
        kv_layer,
        slot_mapping,
        cos_sin if q_norm is None else q_norm,
        cos_sin if k_norm is None else k_norm,
        q,
        qkv.stride(0),
        *kv_layer.stride()[:4],
        block_size,
        num_heads,
        num_kv_heads,
        eps,
        head_dim,
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        HEADS=HEADS_AT_ONCE,
        HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=max(1, min(4, triton.next_power_of_2(head_dim) // 64)),
    )
    return q
