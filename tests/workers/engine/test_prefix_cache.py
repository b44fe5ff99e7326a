"""Who finds whose blocks, and when."""

import itertools

import pytest

from tests.workers.engine.fakes import make_sequence
from tests.workers.engine.test_block_manager import compute, start
from workers.engine.block_manager import BlockManager
from workers.engine.chain import Chain, block_key
from workers.engine.sequence import Sequence


def make_salted(id: str, num_tokens: int, salt: bytes) -> Sequence:
    sequence = make_sequence(id, range(num_tokens))
    sequence.salt = salt
    return sequence


def num_hits(manager: BlockManager, num_tokens: int, salt: bytes = b"") -> int:
    """Blocks that a new sequence of the tokens 0, 1, 2, ... finds."""
    sequence = make_salted("probe", num_tokens, salt)
    assert manager.admit(sequence, leave=0)
    found = len(sequence.block_table)
    manager.release(sequence)
    return found


def test_no_two_meanings_have_the_same_key() -> None:
    """Neither by moving bytes from one field to the next nor by leaving one out."""
    parts = [b"", b"a", b"ab", b"\x01\x00\x00\x00", block_key(b"", [1], salt=b"", layout=b"")]
    keys = {
        block_key(parent, token_ids, salt=salt, layout=layout)
        for parent, salt, layout in itertools.product(parts, parts, parts)
        for token_ids in ([1], [1, 0], [0, 1], [256], [2**32 - 1])
    }
    assert len(keys) == len(parts) ** 3 * 5
    assert all(len(key) == 32 for key in keys)


def test_a_key_depends_on_every_token_before_it() -> None:
    chains = [
        Chain(make_sequence("a", token_ids), block_size=2, layout=b"")
        for token_ids in ([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], [1, 2, 3, 4, 6])
    ]
    first, other_head, other_tail = ([chain.key(1), chain.key(0)] for chain in chains)
    assert first[0] != other_head[0]
    assert first == other_tail  # the fifth token is in no full block
    with pytest.raises(AssertionError, match="only full blocks"):
        chains[0].key(2)


def test_a_sequence_of_another_salt_finds_nothing() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    mine = make_salted("a", 9, b"mine")
    assert manager.admit(mine, leave=0)
    compute(manager, mine)
    assert [num_hits(manager, 9, salt) for salt in (b"mine", b"", b"theirs")] == [2, 0, 0]


def test_blocks_of_other_weights_have_other_keys() -> None:
    sequence = make_sequence("a", 4)
    keys = {Chain(sequence, block_size=4, layout=layout).key(0) for layout in (b"epoch 1", b"epoch 2")}
    assert len(keys) == 2


def test_a_block_is_found_when_the_step_that_fills_it_has_retired_and_not_before() -> None:
    manager = BlockManager(num_blocks=9, block_size=4)
    sequence = make_sequence("a", range(9))
    manager.admit(sequence, leave=0)
    manager.allocate(sequence, 9)
    assert num_hits(manager, 9) == 0
    sequence.num_computed_tokens = 6
    manager.publish(sequence)
    assert num_hits(manager, 9) == 1
    sequence.num_computed_tokens = 8
    manager.publish(sequence)
    assert num_hits(manager, 9) == 2
    manager.check_invariants([sequence])


def test_what_retired_steps_filled_stays_when_a_later_step_fails_or_is_aborted() -> None:
    manager = BlockManager(num_blocks=9, block_size=4)
    sequence = start(manager, "a", range(12), 6)
    assert manager.allocate(sequence, 12)  # the step that is not published
    manager.release(sequence)
    assert num_hits(manager, 12) == 1
    manager.check_invariants([])


def test_a_second_block_of_the_same_content_stays_unknown_and_is_blank_when_it_is_freed() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first, second = make_sequence("a", range(5)), make_sequence("b", range(5))
    for sequence in (first, second):
        manager.admit(sequence, leave=0)
    for sequence in (first, second):
        compute(manager, sequence)
    assert manager.num_cached_blocks == 1
    third = make_sequence("c", range(5))
    manager.admit(third, leave=0)
    assert third.block_table == first.block_table[:1] != second.block_table[:1]
    manager.release(second)
    manager.check_invariants([first, third])


def test_the_last_block_of_a_full_hit_is_computed_again_and_the_first_one_stays() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first = start(manager, "a", range(8))
    second = start(manager, "b", range(8))
    assert second.block_table[0] == first.block_table[0]
    assert second.block_table[1] != first.block_table[1]
    assert manager.num_cached_blocks == 2
    manager.check_invariants([first, second])


def test_a_shared_prefix_is_being_computed_until_its_next_block_is_there() -> None:
    manager = BlockManager(num_blocks=20, block_size=4)
    leader, follower = make_sequence("a", range(12)), make_sequence("b", [*range(8), 40, 41, 42])
    assert not manager.is_being_computed(follower)
    manager.admit(leader, leave=0)
    assert manager.is_being_computed(follower)
    compute(manager, leader, 5)
    assert manager.is_being_computed(follower)  # the second block is still missing
    compute(manager, leader, 8)
    assert not manager.is_being_computed(follower)  # its third block is nobody's
    assert manager.admit(follower, leave=0)
    assert follower.block_table == leader.block_table


@pytest.mark.parametrize("way", ["release", "preempt"])
def test_nobody_waits_for_a_sequence_that_is_gone(way: str) -> None:
    manager = BlockManager(num_blocks=20, block_size=4)
    leader, follower = make_sequence("a", range(12)), make_sequence("b", range(12))
    manager.admit(leader, leave=0)
    assert manager.is_being_computed(follower)
    if way == "release":
        manager.release(leader)
    else:
        manager.preempt(leader, to_host=False)
    assert not manager.is_being_computed(follower)
    manager.check_invariants([])


def test_nobody_waits_for_a_block_that_a_hit_would_not_take() -> None:
    manager = BlockManager(num_blocks=20, block_size=4)
    leader = make_sequence("a", range(8))
    manager.admit(leader, leave=0)
    compute(manager, leader, 4)
    assert not manager.is_being_computed(make_sequence("b", range(8)))  # it computes the second block in any case
    assert manager.is_being_computed(make_sequence("c", range(9)))


def test_revoked_blocks_are_not_found_and_free_again_when_their_holders_are_gone() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first = start(manager, "a", range(9))
    second = make_sequence("b", range(9))
    manager.admit(second, leave=0)
    manager.revoke(first)
    assert manager.num_cached_blocks == 0
    manager.release(first)
    manager.check_invariants([second])
    manager.release(second)
    assert (manager.num_available, num_hits(manager, 9)) == (8, 0)


def test_a_forked_sequence_publishes_what_it_fills() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    parent = start(manager, "a", range(6))
    child = make_sequence("b", [*range(6), 6, 7])
    manager.fork(parent, child)
    compute(manager, child)
    manager.release(parent)
    manager.release(child)
    assert num_hits(manager, 9) == 2
    manager.check_invariants([])


def test_a_forked_sequence_publishes_what_its_parent_did_not() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    parent = make_sequence("a", range(9))
    manager.admit(parent, leave=0)
    manager.allocate(parent, 9)
    parent.num_computed_tokens = 8
    child = make_sequence("b", range(9))
    manager.fork(parent, child)
    manager.release(parent)
    compute(manager, child)
    assert num_hits(manager, 9) == 2


def test_the_hits_and_evictions_are_counted() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.release(start(manager, "a", range(12)))
    manager.release(start(manager, "b", range(9)))
    manager.release(start(manager, "c", [40] * 16))
    stats = manager.stats
    assert (stats.lookups_tokens, stats.hit_tokens, stats.host_hit_tokens) == (37, 8, 0)
    assert stats.evictions == 3
