"""Writes of K and V to their slots, against the reference."""

import pytest
import torch

from kernels import make_kv_cache, reference
from kernels.triton.store_kv import store_kv

NUM_BLOCKS, BLOCK_SIZE = 5, 32


def make_layers(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Two equal layers, each the last one of a cache of three whose other layers hold the same."""
    cache = make_kv_cache(
        num_blocks=NUM_BLOCKS,
        num_layers=3,
        block_size=BLOCK_SIZE,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device="cpu",
    ).normal_()
    return [cache.clone(), cache]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 63), (3, 64), (8, 128), (1, 256)])
@pytest.mark.parametrize("num_tokens", [0, 1, 63])
def test_tokens_are_written_to_their_slots_and_nowhere_else(
    num_tokens: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    k, v = torch.randn(2, num_tokens, num_kv_heads, head_dim).to(dtype)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:num_tokens]
    found, expected = make_layers(num_kv_heads, head_dim, dtype)
    store_kv(k, v, found[:, 2], slots)
    reference.store_kv(k, v, expected[:, 2], slots)
    assert torch.equal(found, expected)


def test_k_and_v_may_be_columns_of_one_projection() -> None:
    qkv = torch.randn(7, 4 + 2 + 2, 16)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:7]
    found, expected = make_layers(2, 16, torch.float32)
    for write, cache in ((store_kv, found), (reference.store_kv, expected)):
        write(qkv[:, 4:6], qkv[:, 6:], cache[:, 2], slots)
    assert torch.equal(found, expected)


def test_what_does_not_fit_the_cache_is_refused() -> None:
    layer = make_layers(2, 16, torch.float32)[0][:, 2]
    k, slots = torch.zeros(3, 2, 16), torch.arange(3)
    for args in ((k[:, :1], k[:, :1], slots), (k.half(), k.half(), slots), (k, k, slots[:2])):
        with pytest.raises(AssertionError):
            store_kv(args[0], args[1], layer, args[2])
