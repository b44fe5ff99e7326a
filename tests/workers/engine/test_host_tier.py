"""What the device gives up goes down, is found there, and comes up again; never before it is there, never after."""

from tests.workers.engine.fakes import make_sequence
from tests.workers.engine.tier_world import World
from workers.engine.chain import Chain


def test_evicted_blocks_go_down_and_hits_come_up() -> None:
    world = World()
    world.pass_through("a", 0, 13)
    _, moves = world.pass_through("b", 100, 13)
    assert len(moves.offloads) == 3  # its partial fourth was blank
    num_found, moves = world.pass_through("c", 0, 13)
    assert (num_found, len(moves.loads)) == (12, 3)
    stats = world.blocks.stats
    assert (stats.host_hit_tokens, stats.loaded_blocks, stats.offloaded_blocks) == (12, 3, 6)
    assert not world.pass_through("d", 0, 13)[1].loads  # once is enough


def test_a_block_that_comes_up_stays_in_the_host_and_goes_down_without_a_copy() -> None:
    world = World()
    for first in (0, 100, 0):
        world.pass_through("a", first, 13)
    _, moves = world.pass_through("b", 100, 13)
    assert not moves.offloads


def test_a_loaded_block_is_not_given_to_others_before_the_step_that_loads_it_has_retired() -> None:
    world = World(num_blocks=8)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    first, second = world.admit("b", 0, 13), make_sequence("c", range(13))
    assert first.num_computed_tokens == 12
    assert world.blocks.is_being_computed(second)
    world.compute(first)
    assert not world.blocks.is_being_computed(second)
    assert world.blocks.admit(second, leave=0)
    assert second.block_table == first.block_table[:3]
    world.blocks.check_invariants([first, second])


def test_what_a_failed_step_was_to_bring_down_is_not_believed() -> None:
    world = World()
    world.pass_through("a", 0, 13)
    failing = world.admit("b", 100, 13)
    world.blocks.allocate(failing, 13)
    moves = world.blocks.take_moves()
    assert len(moves.offloads) == 3 and not moves.is_done
    world.blocks.land(moves)
    world.release(failing)
    world.blocks.check_invariants([])
    assert len(world.host) == 0
    assert world.pass_through("c", 0, 13)[0] == 0


def test_what_is_being_brought_down_is_found_when_its_step_has_retired() -> None:
    world = World()
    world.pass_through("a", 0, 13)
    sequence = world.admit("b", 100, 13)
    world.blocks.allocate(sequence, 13)
    key = Chain(make_sequence("c", range(13)), block_size=4, layout=b"").key(2)  # the tail goes first
    assert world.host.has(key)  # a load of the same batch comes after it
    moves = world.blocks.take_moves()
    assert not world.host.has(key) and world.host.is_on_its_way(key)
    world.memory.execute(moves)
    world.blocks.land(moves)
    assert world.host.has(key)


def test_a_slot_that_a_queued_load_reads_is_not_used_again_in_the_same_batch() -> None:
    world = World(num_blocks=4, num_slots=3)
    world.pass_through("a", 0, 13)
    world.pass_through("b", 100, 13)
    num_found, moves = world.pass_through("c", 0, 13)  # what it pushes out of the device finds no room
    assert (num_found, len(moves.loads), len(moves.offloads)) == (12, 3, 0)


def test_a_preempted_sequence_keeps_its_blocks_in_the_host_whatever_others_do() -> None:
    world = World(num_blocks=4, num_slots=4)
    sequence = world.admit("a", 0, 13)
    world.compute(sequence)
    world.running.remove(sequence)
    world.blocks.preempt(sequence, to_host=True)
    sequence.num_computed_tokens = 0
    for first in (100, 200, 300, 400):
        world.pass_through("b", first, 13)
    assert world.blocks.admit(sequence, leave=0)
    world.running.append(sequence)
    assert sequence.num_computed_tokens == 12
    assert len(world.compute(sequence).loads) == 3
    world.release(sequence)
    world.blocks.check_invariants([])


def test_pins_go_with_the_sequence() -> None:
    world = World(num_blocks=4, num_slots=3)
    sequence = world.admit("a", 0, 13)
    world.compute(sequence)
    world.running.remove(sequence)
    world.blocks.preempt(sequence, to_host=True)
    world.pass_through("b", 100, 13)
    assert len(world.pass_through("c", 200, 13)[1].offloads) == 0  # all slots are pinned
    world.blocks.release(sequence)
    assert len(world.pass_through("d", 300, 13)[1].offloads) == 3


def test_a_preemption_keeps_the_head_when_the_host_has_no_room_for_all() -> None:
    world = World(num_blocks=4, num_slots=2)
    sequence = world.admit("a", 0, 13)
    world.compute(sequence)
    world.running.remove(sequence)
    world.blocks.preempt(sequence, to_host=True)
    sequence.num_computed_tokens = 0
    world.pass_through("b", 100, 13)
    assert world.blocks.admit(sequence, leave=0)
    assert sequence.num_computed_tokens == 8


def test_blocks_of_a_load_that_is_given_up_are_blank() -> None:
    world = World(num_blocks=4)
    for first in (0, 100):
        world.pass_through("a", first, 13)
    sequence = world.admit("b", 0, 13)
    world.release(sequence)
    world.blocks.check_invariants([])
    moves = world.compute(world.admit("c", 200, 13))
    assert not moves.loads


def test_revoked_blocks_are_not_found_in_any_tier() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):  # the first is on disk by now, the second in the host
        world.pass_through("a", first, 13)
    assert len(world.memory.files) == 3
    bad = [make_sequence("b", range(first, first + 13)) for first in (0, 100, 200)]
    for sequence in bad:
        assert world.blocks.admit(sequence, leave=0)
        world.blocks.revoke(sequence)
        world.blocks.release(sequence)
        world.blocks.check_invariants([])
    assert not world.memory.files
    assert [world.pass_through("c", first, 13)[0] for first in (0, 100, 200)] == [0, 0, 0]


def test_a_waiting_sequence_has_its_blocks_brought_up_from_disk() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    sequence = make_sequence("b", range(13))
    assert world.blocks.prefetch(sequence)
    assert len(world.memory.reading) == 3
    world.memory.wait(1.0)
    assert not world.blocks.prefetch(sequence)
    assert world.blocks.admit(sequence, leave=0)
    world.running.append(sequence)
    assert sequence.num_computed_tokens == 12
    moves = world.compute(sequence)
    assert (len(moves.spills), len(moves.fills), len(moves.loads)) == (3, 3, 3)
    stats = world.blocks.stats
    assert (stats.hit_tokens, stats.host_hit_tokens, stats.disk_hit_tokens) == (12, 12, 12)


def test_a_block_that_cannot_be_read_is_a_miss_and_waited_for_once() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    sequence = make_sequence("b", range(13))
    assert world.blocks.prefetch(sequence)
    world.memory.end_read(is_good=True)
    world.memory.end_read(is_good=False)
    assert world.blocks.prefetch(sequence)  # the third is still being read
    world.memory.end_read(is_good=True)
    assert not world.blocks.prefetch(sequence)
    assert world.blocks.admit(sequence, leave=0)
    world.running.append(sequence)
    assert sequence.num_computed_tokens == 4
    world.compute(sequence)


def test_a_sequence_that_goes_while_its_blocks_are_read_leaves_nothing_held() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    sequence = make_sequence("b", range(13))
    assert world.blocks.prefetch(sequence)
    world.blocks.release(sequence)
    world.memory.wait(1.0)
    assert not world.blocks.prefetch(make_sequence("c", 5))
    assert world.pass_through("d", 0, 13)[0] == 12  # read is read
    world.blocks.check_invariants([])


def test_a_sequence_that_waits_again_sends_for_its_blocks_again() -> None:
    world = World(num_blocks=4, num_slots=3)
    sequence = world.admit("a", 0, 13)
    assert not world.blocks.prefetch(sequence)
    world.compute(sequence)
    world.running.remove(sequence)
    world.blocks.preempt(sequence, to_host=False)
    for first in (100, 200, 300):
        world.pass_through("b", first, 13)
    assert world.blocks.prefetch(sequence)


def test_what_is_read_of_a_revoked_block_is_thrown_away() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    sequence = make_sequence("b", range(13))
    assert world.blocks.prefetch(sequence)
    world.memory.end_read(is_good=True)
    world.blocks.revoke(sequence)
    world.memory.wait(1.0)
    assert not world.blocks.prefetch(sequence)
    assert not world.memory.read
    world.blocks.release(sequence)
    assert world.pass_through("c", 0, 13)[0] == 0


def test_what_a_failed_step_was_to_fill_in_is_thrown_away() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    sequence = make_sequence("b", range(13))
    assert world.blocks.prefetch(sequence)
    world.memory.wait(1.0)
    assert not world.blocks.prefetch(sequence)
    assert world.blocks.admit(sequence, leave=0)
    world.blocks.land(world.blocks.take_moves())
    assert not world.memory.read
    world.blocks.release(sequence)
    world.blocks.check_invariants([])
    assert len(world.host) == 0


def test_nothing_is_read_from_disk_when_the_host_has_no_room() -> None:
    world = World(num_blocks=4, num_slots=3)
    for first in (0, 100, 200):
        world.pass_through("a", first, 13)
    pinned = world.admit("b", 300, 13)
    world.compute(pinned)
    world.running.remove(pinned)
    world.blocks.preempt(pinned, to_host=True)
    assert not world.blocks.prefetch(make_sequence("c", range(13)))
    assert not world.memory.reading


def test_moves_that_a_second_step_brings_again_land_once() -> None:
    world = World()
    world.pass_through("a", 0, 13)
    _, moves = world.pass_through("b", 100, 13)
    assert moves.offloads
    world.blocks.land(moves)
    world.blocks.check_invariants([])
    assert world.pass_through("c", 0, 13)[0] == 12
