"""Writes into the KV cache on a GPU: a step's K and V to their slots, and whole blocks from one place to another."""

import torch
import triton
import triton.language as tl


def store_kv(k: torch.Tensor, v: torch.Tensor, kv_layer: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write k and v [n, num_kv_heads, head_dim] into `kv_layer` [num_blocks, 2, block_size, ...] at their slots.

    `slot_mapping` is int64 [n]: block_id * block_size + offset. All are of one dtype; each token of k and of v, and
    each block, is one run of memory.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    assert v.shape == k.shape and kv_layer.shape[3:] == k.shape[1:], "K, V and the cache differ in shape"
    assert k.dtype == v.dtype == kv_layer.dtype, "K, V and the cache differ in dtype"
    assert len(slot_mapping) == num_tokens, f"{len(slot_mapping)} slots for {num_tokens} tokens"
    assert all(x.stride()[1:] == (head_dim, 1) for x in (k, v)), "a token's K or V is in pieces"
    assert kv_layer[0].is_contiguous(), "a block is in pieces"
    if num_tokens == 0:
        return
    num_elements = num_kv_heads * head_dim
    _store_token[(num_tokens,)](
        k,
        v,
        kv_layer,
        slot_mapping,
        k.stride(0),
        v.stride(0),
        kv_layer.stride(0),
        BLOCK_SIZE=kv_layer.shape[2],
        NUM_ELEMENTS=num_elements,
        PADDED_ELEMENTS=triton.next_power_of_2(num_elements),
    )


@triton.jit
def _store_token(
    k_ptr,
    v_ptr,
    kv_layer_ptr,
    slot_mapping_ptr,
    k_stride,
    v_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_ELEMENTS: tl.constexpr,
    PADDED_ELEMENTS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    elements = tl.arange(0, PADDED_ELEMENTS)
    mask = elements < NUM_ELEMENTS
    target = kv_layer_ptr + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * NUM_ELEMENTS + elements
    tl.store(target, tl.load(k_ptr + token * k_stride + elements, mask=mask), mask=mask)
    tl.store(target + BLOCK_SIZE * NUM_ELEMENTS, tl.load(v_ptr + token * v_stride + elements, mask=mask), mask=mask)
