"""Moves on real tensors: every byte of a block arrives, in an order that makes reuse within one batch safe."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import make_kv_cache
from workers.engine.disk_tier import DiskTier
from workers.engine.mover import Mover
from workers.engine.moves import Moves

NUM_BLOCKS = 6
KEYS = [bytes([i]) * 32 for i in range(4)]
DTYPES = [torch.float32, torch.bfloat16]


def make_kv(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A cache of random content: [6 blocks, 3 layers, 2, 4 slots, 2 heads, 5 dims]."""
    kv_cache = make_kv_cache(
        num_blocks=NUM_BLOCKS, num_layers=3, block_size=4, num_kv_heads=2, head_dim=5, dtype=dtype, device="cpu"
    )
    return kv_cache.copy_(torch.randn(kv_cache.shape, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, max_bytes=2**20, layout=b"")
    yield tier
    tier.close()


def read(disk: DiskTier, key: bytes) -> None:
    disk.prefetch(key)
    disk.wait(30)
    assert disk.poll() == [(key, True)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_comes_back_from_the_host_bit_for_bit(dtype: torch.dtype) -> None:
    kv_cache = make_kv(dtype)
    before = kv_cache.clone()
    mover = Mover(kv_cache, num_host_slots=2)
    assert torch.equal(kv_cache, before)  # measuring the rate changes nothing
    mover.run(Moves(offloads=[(1, 0), (4, 1)]))
    kv_cache[[1, 4]] = 0
    mover.run(Moves(loads=[(1, 4), (0, 2)]))
    assert torch.equal(kv_cache[4], before[4]) and torch.equal(kv_cache[2], before[1])
    assert torch.equal(kv_cache[[0, 3, 5]], before[[0, 3, 5]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_comes_back_from_disk_bit_for_bit(dtype: torch.dtype, disk: DiskTier) -> None:
    kv_cache = make_kv(dtype)
    before = kv_cache.clone()
    mover = Mover(kv_cache, num_host_slots=2, disk=disk)
    mover.run(Moves(offloads=[(1, 0)]))
    mover.run(Moves(spills=[(0, KEYS[0])], offloads=[(2, 0)]))  # the slot is saved before it is used again
    assert disk.wait_until_idle(30)
    read(disk, KEYS[0])
    mover.run(Moves(fills=[(KEYS[0], 1)], loads=[(1, 5), (0, 4)]))
    assert torch.equal(kv_cache[5], before[1]) and torch.equal(kv_cache[4], before[2])


def test_a_block_is_saved_before_it_is_written_and_read_before_it_is_loaded() -> None:
    kv_cache = make_kv()
    before = kv_cache.clone()
    mover = Mover(kv_cache, num_host_slots=1)
    mover.run(Moves(offloads=[(0, 0)], copies=[(1, 0), (2, 1)], loads=[(0, 2)]))
    assert torch.equal(kv_cache[[0, 1, 2]], before[[1, 2, 0]])


def test_copies_of_one_block_go_to_each_of_its_heirs() -> None:
    kv_cache = make_kv()
    before = kv_cache.clone()
    Mover(kv_cache).run(Moves(copies=[(3, 0), (3, 1), (4, 3)]))
    assert torch.equal(kv_cache[[0, 1, 3]], before[[3, 3, 4]])


def test_moves_are_executed_once() -> None:
    kv_cache = make_kv()
    mover = Mover(kv_cache)
    moves = Moves(copies=[(3, 0)])
    mover.run(moves)
    assert moves.is_done
    kv_cache[0] = 0
    mover.run(moves)
    assert not kv_cache[0].any()


def test_moves_that_fail_are_not_done(disk: DiskTier) -> None:
    kv_cache = make_kv()
    disk.write(KEYS[0], b"too short for a block")
    assert disk.wait_until_idle(30)
    read(disk, KEYS[0])
    moves = Moves(fills=[(KEYS[0], 0)], loads=[(0, 1)])
    before = kv_cache.clone()
    with pytest.raises(ValueError, match="a payload of 21 bytes is not a block of 960"):
        Mover(kv_cache, num_host_slots=1, disk=disk).run(moves)
    assert not moves.is_done
    assert torch.equal(kv_cache, before)


def test_what_was_moved_is_counted_in_bytes() -> None:
    mover = Mover(make_kv(), num_host_slots=2)
    mover.run(Moves(offloads=[(0, 0), (1, 1)], copies=[(2, 3)], loads=[(0, 4)]))
    stats = mover.stats
    assert (stats.offloaded_bytes, stats.copied_bytes, stats.loaded_bytes) == (1920, 960, 960)
    assert stats.seconds > 0
    assert mover.seconds_per_block > 0


def test_without_a_host_tier_nothing_is_measured_or_held() -> None:
    assert Mover(make_kv()).seconds_per_block == 0.0
