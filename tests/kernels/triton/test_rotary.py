"""Norms of heads, rotation and cache write in one Triton kernel are the reference's one after another."""

from collections.abc import Callable

import pytest
import torch

from kernels import reference
from kernels.attention import make_kv_cache
from kernels.triton import rotary
from tests.kernels.triton.closeness import DTYPES, assert_as_close

EPS, BLOCK_SIZE, NUM_BLOCKS = 1e-6, 32, 4


class Step:
    """What one layer of one step has: QKV of some tokens, angles, an empty cache of two layers, scattered slots."""

    def __init__(self, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(0)
        self.num_heads = num_heads
        self.qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, generator=random).to(dtype)
        inv_freq = 10000.0 ** (-torch.arange(head_dim // 2) / (head_dim // 2))
        self.cos_sin = reference.rotary_cos_sin(torch.arange(num_tokens) * 37, inv_freq)
        self.slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, generator=random)[:num_tokens]
        self.q_norm, self.k_norm = torch.randn(2, head_dim, generator=random)
        self.cache_shape = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": dtype}

    def make_cache(self) -> torch.Tensor:
        cache = make_kv_cache(
            num_blocks=NUM_BLOCKS, num_layers=2, block_size=BLOCK_SIZE, device="cpu", **self.cache_shape
        )
        return cache.fill_(7.0)

    def exact(self, norms: tuple[bool, bool]) -> tuple[torch.Tensor, torch.Tensor]:
        """Q [n, num_heads * head_dim] and K [n, num_kv_heads, head_dim] in fp64."""
        num_kv_heads, head_dim = self.cache_shape["num_kv_heads"], self.cache_shape["head_dim"]
        heads = self.qkv.double().view(len(self.qkv), -1, head_dim)
        q, k, _ = heads.split([self.num_heads, num_kv_heads, num_kv_heads], dim=1)
        q, k = _norm(q, self.q_norm) if norms[0] else q, _norm(k, self.k_norm) if norms[1] else k
        cos, sin = self.cos_sin.double()[:, None].unbind(2)
        return _rotate(q, cos, sin).flatten(1), _rotate(k, cos, sin)

    def run(self, function: Callable[..., torch.Tensor], norms: tuple[bool, bool]) -> tuple[torch.Tensor, torch.Tensor]:
        """(q, the whole cache) once layer 1 is stored, with the norms of Q and K that are asked for."""
        cache = self.make_cache()
        q_norm, k_norm = self.q_norm if norms[0] else None, self.k_norm if norms[1] else None
        options = {"num_heads": self.num_heads, "q_norm": q_norm, "k_norm": k_norm, "eps": EPS}
        return function(self.qkv, self.cos_sin, cache[:, 1], self.slots, **options), cache


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim"), [(1, 2, 1, 64), (5, 3, 3, 96), (7, 9, 3, 66)]
)
def test_heads_are_normed_rotated_and_stored_as_by_the_reference(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, norms: tuple[bool, bool], dtype: torch.dtype
) -> None:
    step = Step(num_tokens, num_heads, num_kv_heads, head_dim, dtype)
    exact_q, exact_k = step.exact(norms)
    theirs_q, theirs_cache = step.run(reference.rotate_and_store, norms)
    q, cache = step.run(rotary.rotate_and_store, norms)
    assert_as_close(q, theirs_q, exact_q)
    k, theirs_k = (c[step.slots // BLOCK_SIZE, 1, 0, step.slots % BLOCK_SIZE] for c in (cache, theirs_cache))
    assert_as_close(k, theirs_k, exact_k)
    assert torch.equal(cache == 7.0, theirs_cache == 7.0)  # nothing else is written
    assert torch.equal(cache[:, 1, 1], theirs_cache[:, 1, 1])  # V is copied


def test_values_that_are_not_finite_stay_in_their_place() -> None:
    step = Step(2, 2, 1, 64, torch.float32)
    step.qkv[0, -1] = torch.inf
    q, cache = step.run(rotary.rotate_and_store, (False, False))
    theirs_q, theirs_cache = step.run(reference.rotate_and_store, (False, False))
    assert torch.equal(q, theirs_q) and torch.equal(cache, theirs_cache)


def test_qkv_may_be_part_of_a_wider_matrix() -> None:
    step = Step(3, 2, 2, 64, torch.float32)
    step.qkv = torch.nn.functional.pad(step.qkv, (0, 5))[:, :-5]
    q, cache = step.run(rotary.rotate_and_store, (False, False))
    theirs_q, theirs_cache = step.run(reference.rotate_and_store, (False, False))
    torch.testing.assert_close(q, theirs_q)
    torch.testing.assert_close(cache, theirs_cache)
