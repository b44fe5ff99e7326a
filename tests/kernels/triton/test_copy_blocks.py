"""Copies of blocks, against the same copies one after the other."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import make_kv_cache
from kernels.triton.copy_blocks import Pairs, _copy, copy_blocks


def make_cache(num_blocks: int, *, head_dim: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return make_kv_cache(
        num_blocks=num_blocks,
        num_layers=2,
        block_size=16,
        num_kv_heads=1,
        head_dim=head_dim,
        dtype=dtype,
        device="cpu",
    ).normal_()


class Backwards:
    """Stands in for a kernel whose programs run in the order of the grid: the last pair is copied first."""

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def run(source: torch.Tensor, target: torch.Tensor, ids: torch.Tensor, *args: int, SIZE: int) -> None:
            _copy[grid](source, target, ids.flip(0), *args, SIZE=SIZE)

        return run


def one_by_one(source: torch.Tensor, target: torch.Tensor, pairs: Pairs) -> None:
    for source_id, target_id in pairs:
        target[target_id].copy_(source[source_id])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [1, 63, 256])  # the last of several programs a block
def test_blocks_go_to_another_tensor(head_dim: int, dtype: torch.dtype) -> None:
    cache = make_cache(4, head_dim=head_dim, dtype=dtype)
    found, expected = torch.zeros(3, *cache.shape[1:], dtype=dtype), torch.zeros(3, *cache.shape[1:], dtype=dtype)
    pairs = [(3, 0), (0, 2), (2, 0)]
    copy_blocks(cache, found, pairs)
    one_by_one(cache, expected, pairs)
    assert torch.equal(found, expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1]), max_size=8))
def test_copies_within_a_cache_count_as_one_after_the_other(pairs: Pairs) -> None:
    for kernel in (_copy, Backwards()):  # a GPU takes the pairs of a launch in any order
        found = make_cache(5)
        expected = found.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kernels.triton.copy_blocks._copy", kernel)
            copy_blocks(found, found, pairs)
        one_by_one(expected, expected, pairs)
        assert torch.equal(found, expected)


def test_copies_that_do_not_touch_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[tuple[int, int]] = []

    class Launches:
        def __getitem__(self, grid: tuple[int, int]) -> "Launches":
            grids.append(grid)
            return self

        def __call__(self, *args: object, **kwargs: object) -> None: ...

    monkeypatch.setattr("kernels.triton.copy_blocks._copy", Launches())
    cache = make_cache(8)
    copy_blocks(cache, cache, [(0, 4), (0, 5), (1, 6)])
    assert grids == [(3, 1)]
    copy_blocks(cache, cache, [(0, 4), (4, 5), (1, 6)])
    assert grids[1:] == [(1, 1), (2, 1)]


def test_blocks_of_another_kind_are_refused() -> None:
    with pytest.raises(AssertionError, match="different kinds"):
        copy_blocks(make_cache(2), make_cache(2, head_dim=4), [(0, 1)])
