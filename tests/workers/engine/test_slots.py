"""Slots: kept while a sequence runs, and told nothing twice."""

from tests.workers.engine.fakes import make_sequence
from workers.engine.batch import Batch, build_batch
from workers.engine.sequence import Sequence, Status
from workers.engine.slots import Slots

BLOCK_SIZE, MAX_BLOCKS = 4, 10


def make_running(id: str, *block_ids: int) -> Sequence:
    """A sequence whose blocks are full but for the last slot, which its next token goes to."""
    sequence = make_sequence(id, len(block_ids) * BLOCK_SIZE)
    sequence.status, sequence.block_table = Status.RUNNING, list(block_ids)
    sequence.num_computed_tokens = sequence.num_tokens - 1
    return sequence


def decode(*sequences: Sequence) -> Batch:
    return build_batch(list(sequences), [1] * len(sequences), BLOCK_SIZE)


def update(slots: Slots, batch: Batch) -> list[tuple[int, int, int]]:
    """(slot, column, block id) of what is to be written."""
    places, block_ids = slots.update(batch, slots.take(batch.sequences))
    return [(*divmod(place, MAX_BLOCKS), block_id) for place, block_id in zip(places, block_ids, strict=True)]


def grow(sequence: Sequence, block_id: int) -> None:
    """By a sampled token, whose block is new."""
    sequence.token_ids.append(7)
    sequence.num_computed_tokens += 1
    sequence.block_table.append(block_id)


def test_a_running_sequence_keeps_its_slot_whoever_is_beside_it() -> None:
    slots = Slots(3, MAX_BLOCKS)
    a, b, c = (make_running(id, 1) for id in "abc")
    [first] = slots.take([a])
    assert slots.take([b, a])[1] == first
    a.status = Status.FINISHED
    assert slots.take([c, b])[1] == slots.find(b)
    assert slots.find(a) == slots.dummy == 3


def test_slots_of_those_that_run_no_more_are_taken_again() -> None:
    slots = Slots(2, MAX_BLOCKS)
    for i in range(5):
        pair = [make_running(f"{i}{id}", 1) for id in "ab"]
        assert sorted(slots.take(pair)) == [0, 1]
        for sequence, status in zip(pair, (Status.FINISHED, Status.WAITING), strict=True):
            sequence.status = status


def test_tables_are_told_whole_once_and_then_only_what_differs() -> None:
    slots = Slots(2, MAX_BLOCKS)
    a, b = make_running("a", 5, 6), make_running("b", 7)
    at, bt = slots.take([a, b])
    assert update(slots, decode(a, b)) == [(at, 0, 5), (at, 1, 6), (bt, 0, 7)]
    assert update(slots, decode(b)) == []
    grow(a, 9)
    assert update(slots, decode(b, a)) == [(at, 2, 9)]
    a.block_table[1] = 8  # copied on write
    assert update(slots, decode(a)) == [(at, 1, 8)]
    assert update(slots, decode(a, b)) == []


def test_a_batch_that_is_advanced_tells_the_blocks_that_its_rows_gained() -> None:
    slots = Slots(2, MAX_BLOCKS)
    a, b = make_running("a", 5), make_running("b", 7)
    batch = decode(a, b)
    update(slots, batch)
    for sequence, block_id in ((a, 3), (b, 4)):
        grow(sequence, block_id)
    batch.advance(BLOCK_SIZE)
    assert update(slots, batch) == [(slots.find(a), 1, 3), (slots.find(b), 1, 4)]
    assert update(slots, decode(b, a)) == []  # those are known too


def test_the_next_owner_of_a_slot_tells_its_own_table() -> None:
    slots = Slots(1, MAX_BLOCKS)
    first, second = make_running("first", 1, 2, 3), make_running("second", 1, 4)
    update(slots, decode(first))
    first.status = Status.FINISHED
    assert update(slots, decode(second)) == [(0, 1, 4)]  # the first column holds it already
    grow(second, 3)
    assert update(slots, decode(second)) == [(0, 2, 3)]


def test_what_is_forgotten_is_told_again_also_by_a_batch_that_was_advanced() -> None:
    slots = Slots(1, MAX_BLOCKS)
    sequence = make_running("a", 5)
    batch = decode(sequence)
    update(slots, batch)
    slots.forget()
    grow(sequence, 6)
    batch.advance(BLOCK_SIZE)
    assert update(slots, batch) == [(0, 0, 5), (0, 1, 6)]
