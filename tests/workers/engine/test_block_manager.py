"""Blocks are handed out once, promised once, shared while they are equal, and taken back once."""

from collections.abc import Iterable

import pytest

from tests.workers.engine.fakes import make_sequence
from workers.engine.block_manager import BlockManager
from workers.engine.config import blocks_needed
from workers.engine.moves import Moves
from workers.engine.sequence import Sequence


def compute(manager: BlockManager, sequence: Sequence, num_tokens: int | None = None) -> Moves:
    """One step that computes up to `num_tokens` tokens of a running sequence, by default all; its moves."""
    end = sequence.num_tokens if num_tokens is None else num_tokens
    assert manager.allocate(sequence, end)
    moves = manager.take_moves()
    sequence.num_computed_tokens = end
    manager.land(moves)
    manager.publish(sequence)
    return moves


def start(manager: BlockManager, id: str, prompt: int | Iterable[int], num_tokens: int | None = None) -> Sequence:
    """A sequence that is admitted and has computed `num_tokens` tokens, by default all."""
    sequence = make_sequence(id, prompt)
    assert manager.admit(sequence, leave=0)
    compute(manager, sequence, num_tokens)
    return sequence


def test_blocks_come_from_the_reservation_first() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    sequence = make_sequence("a", 9)
    assert manager.admit(sequence, leave=0)
    assert (manager.num_available, sequence.block_table) == (1, [])
    assert manager.allocate(sequence, 5)
    assert (manager.num_available, len(sequence.block_table), sequence.num_reserved_blocks) == (1, 2, 1)
    assert manager.allocate(sequence, 13)
    assert (manager.num_available, len(sequence.block_table), sequence.num_reserved_blocks) == (0, 4, 0)
    manager.check_invariants([sequence])


def test_a_refused_admission_or_allocation_changes_nothing() -> None:
    manager = BlockManager(num_blocks=3, block_size=4)
    first, second = make_sequence("a", 8), make_sequence("b", 8)
    assert manager.admit(first, leave=1)
    assert not manager.admit(second, leave=0)
    assert (second.block_table, second.num_reserved_blocks, second.num_computed_tokens) == ([], 0, 0)
    assert manager.allocate(first, 8)
    assert not manager.allocate(first, 17)
    assert (manager.num_available, len(first.block_table)) == (1, 2)
    manager.check_invariants([first, second])


def test_released_blocks_without_content_are_used_again_last() -> None:
    manager = BlockManager(num_blocks=3, block_size=4)
    first, second = make_sequence("a", 8), make_sequence("b", 12)
    manager.admit(first, leave=0)
    manager.allocate(first, 8)
    assert first.block_table == [0, 1]
    manager.release(first)
    manager.admit(second, leave=0)
    manager.allocate(second, 12)
    assert second.block_table == [2, 1, 0]


def test_a_block_released_twice_is_noticed() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    sequence = make_sequence("a", 4)
    manager.admit(sequence, leave=0)
    manager.allocate(sequence, 4)
    copy = make_sequence("copy", 4)
    copy.block_table = list(sequence.block_table)
    manager.release(sequence)
    with pytest.raises(AssertionError, match="block 0 is released twice"):
        manager.release(copy)


def test_a_hit_takes_blocks_in_use_at_no_cost_and_free_ones_from_what_is_available() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    first = start(manager, "a", range(12))
    assert manager.num_available == 3
    second = make_sequence("b", range(13))
    assert not manager.admit(second, leave=3)
    assert manager.admit(second, leave=2)  # the three shared ones cost nothing, the partial one is the third
    assert (second.block_table, second.num_reserved_blocks, manager.num_available) == (first.block_table, 1, 2)
    manager.release(first)
    manager.release(second)
    assert manager.num_available == 6
    assert manager.admit(make_sequence("c", range(13)), leave=2)  # four that are free until now
    assert manager.num_available == 2


def test_an_admission_that_only_hits_would_fit_counts_the_hits_once() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.release(start(manager, "a", range(12)))
    other = start(manager, "b", [40])  # the blank block
    sequence = make_sequence("c", range(13))
    assert manager.num_available == 3
    assert not manager.admit(sequence, leave=0)  # its hits are the three free blocks, and it needs a fourth
    assert (sequence.block_table, sequence.num_computed_tokens, manager.num_available) == ([], 0, 3)
    manager.release(other)
    assert manager.admit(sequence, leave=0)
    manager.check_invariants([sequence])


@pytest.mark.parametrize(("num_tokens", "num_hits"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2)])
def test_a_hit_leaves_at_least_one_token_to_compute(num_tokens: int, num_hits: int) -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first = start(manager, "a", range(12))
    second = make_sequence("b", range(num_tokens))
    assert manager.admit(second, leave=0)
    assert second.block_table == first.block_table[:num_hits]
    assert (second.num_computed_tokens, second.num_cached_tokens) == (4 * num_hits, 4 * num_hits)
    manager.check_invariants([first, second])


def test_the_least_recently_used_content_goes_first_and_the_head_of_a_prompt_last() -> None:
    manager = BlockManager(num_blocks=5, block_size=4)
    manager.release(start(manager, "old", range(8)))
    manager.release(start(manager, "new", [*range(20, 28), 0]))  # its partial block is blank again
    start(manager, "c", [30] * 7)  # takes the blank one and the tail of the old prompt
    assert manager.stats.evictions == 1
    old, new = make_sequence("old 2", [*range(8), 1]), make_sequence("new 2", [*range(20, 28), 1])
    assert manager.admit(new, leave=0)
    assert new.num_computed_tokens == 8
    manager.release(new)
    assert manager.admit(old, leave=0)
    assert old.num_computed_tokens == 4


def test_a_fork_shares_every_block_and_only_the_partial_one_is_copied_by_the_first_to_write() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    parent = start(manager, "a", 10)
    child = make_sequence("b", [*parent.token_ids, 1])
    manager.fork(parent, child)
    assert (child.block_table, child.num_computed_tokens, child.num_reserved_blocks) == (parent.block_table, 10, 0)
    assert manager.num_available == 3
    shared = parent.block_table[2]
    moves = compute(manager, child)
    assert moves.copies == [(shared, child.block_table[2])]
    assert child.block_table[:2] == parent.block_table[:2] and child.block_table[2] != shared
    parent.token_ids.append(2)
    assert not compute(manager, parent).copies  # the last holder writes in place
    assert parent.block_table[2] == shared
    manager.check_invariants([parent, child])


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    parent = start(manager, "a", 8)
    child = make_sequence("b", [*parent.token_ids, 1])
    manager.fork(parent, child)
    assert not compute(manager, child).copies
    assert child.block_table[:2] == parent.block_table
    assert child.block_table[2] not in parent.block_table


def test_three_forks_of_one_prompt_hold_one_prompt_and_a_block_each() -> None:
    manager = BlockManager(num_blocks=20, block_size=4)
    parent = start(manager, "a", 4 * 10 + 1)
    children = [make_sequence(id, [*parent.token_ids, i]) for i, id in enumerate("bc")]
    for child in children:
        manager.fork(parent, child)
        compute(manager, child)
    assert 20 - manager.num_available == 10 + 3
    manager.check_invariants([parent, *children])


def test_a_fork_of_fewer_tokens_never_writes_into_a_block_that_can_be_found() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    parent = start(manager, "a", range(8))
    child = make_sequence("b", [*range(6), 40])
    manager.fork(parent, child, num_computed_tokens=6)
    manager.release(parent)
    assert len(compute(manager, child).copies) == 1  # though it was the last holder
    other = make_sequence("c", range(9))
    assert manager.admit(other, leave=0)
    assert other.num_computed_tokens == 8
    manager.check_invariants([child, other])


def test_a_copy_that_finds_no_block_changes_nothing() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    parent = start(manager, "a", 6)
    child = make_sequence("b", [*parent.token_ids, 1])
    manager.fork(parent, child)
    assert not manager.allocate(child, 7)
    assert child.block_table == parent.block_table and not manager.take_moves()
    manager.release(parent)
    assert manager.allocate(child, 7)  # now it is the last holder
    assert not manager.take_moves().copies


def test_a_sequence_in_flight_is_not_copied_for_what_it_writes_already() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    parent = start(manager, "a", range(5), 3)
    assert manager.allocate(parent, 4)
    parent.num_flying_tokens = 1
    manager.fork(parent, make_sequence("b", range(4)))  # of the three tokens that are there
    assert manager.allocate(parent, 5)
    assert not manager.take_moves().copies


def test_a_preempted_sequence_finds_the_blocks_of_its_prompt_and_of_its_output_again() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    sequence = start(manager, "a", 7)
    sequence.token_ids.extend([1, 2, 3])
    compute(manager, sequence)
    manager.preempt(sequence, to_host=False)
    sequence.num_computed_tokens = 0
    assert manager.num_available == 6
    assert manager.admit(sequence, leave=0)
    assert sequence.num_computed_tokens == 8
    assert sequence.num_cached_tokens == 0  # what counts is the first admission
    manager.check_invariants([sequence])


def test_cached_tokens_are_those_of_the_prompt() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    manager.release(start(manager, "a", range(12)))
    resumed = make_sequence("b", range(6), output_ids=range(6, 12))
    assert manager.admit(resumed, leave=0)
    assert (resumed.num_computed_tokens, resumed.num_cached_tokens) == (8, 6)


def test_without_caching_nothing_is_found() -> None:
    manager = BlockManager(num_blocks=6, block_size=4, is_caching=False)
    first = start(manager, "a", range(8))
    second = make_sequence("b", range(9))
    assert not manager.is_being_computed(second)
    assert manager.admit(second, leave=0)
    assert (second.block_table, manager.num_cached_blocks) == ([], 0)
    manager.check_invariants([first, second])


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens", "num_blocks"), [(1, 0, 1), (15, 1, 1), (16, 1, 2)])
def test_blocks_needed_counts_prompt_and_output(num_prompt_tokens: int, max_tokens: int, num_blocks: int) -> None:
    assert blocks_needed(num_prompt_tokens, max_tokens, 16) == num_blocks
