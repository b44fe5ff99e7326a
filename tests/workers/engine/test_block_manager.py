"""Blocks are handed out once, promised once and taken back once."""

import pytest

from tests.workers.engine.fakes import make_sequence
from workers.engine.block_manager import BlockManager
from workers.engine.config import blocks_needed


def test_blocks_come_from_the_reservation_first() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    sequence = make_sequence("a", 9)
    assert manager.reserve(sequence, leave=0)
    assert (manager.num_available, sequence.block_table) == (1, [])
    assert manager.allocate(sequence, 5)
    assert (manager.num_available, len(sequence.block_table), sequence.num_reserved_blocks) == (1, 2, 1)
    assert manager.allocate(sequence, 13)
    assert (manager.num_available, len(sequence.block_table), sequence.num_reserved_blocks) == (0, 4, 0)
    manager.check_invariants([sequence])


def test_a_refused_reservation_or_allocation_changes_nothing() -> None:
    manager = BlockManager(num_blocks=3, block_size=4)
    first, second = make_sequence("a", 8), make_sequence("b", 8)
    assert manager.reserve(first, leave=1)
    assert not manager.reserve(second, leave=0)
    assert manager.allocate(first, 8)
    assert not manager.allocate(first, 17)
    assert (manager.num_available, len(first.block_table)) == (1, 2)
    manager.check_invariants([first, second])


def test_released_blocks_are_used_again_last() -> None:
    manager = BlockManager(num_blocks=3, block_size=4)
    first, second = make_sequence("a", 8), make_sequence("b", 12)
    manager.reserve(first, leave=0)
    manager.allocate(first, 8)
    assert first.block_table == [0, 1]
    manager.release(first)
    manager.reserve(second, leave=0)
    manager.allocate(second, 12)
    assert second.block_table == [2, 1, 0]


def test_a_block_released_twice_is_noticed() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    sequence = make_sequence("a", 4)
    manager.reserve(sequence, leave=0)
    manager.allocate(sequence, 4)
    copy = make_sequence("copy", 4)
    copy.block_table = list(sequence.block_table)
    manager.release(sequence)
    with pytest.raises(AssertionError, match="block 0 is released twice"):
        manager.release(copy)


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens", "num_blocks"), [(1, 0, 1), (15, 1, 1), (16, 1, 2)])
def test_blocks_needed_counts_prompt_and_output(num_prompt_tokens: int, max_tokens: int, num_blocks: int) -> None:
    assert blocks_needed(num_prompt_tokens, max_tokens, 16) == num_blocks
