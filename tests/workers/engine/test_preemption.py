"""Who gives way for whom, for seats and for blocks, in worlds small enough to check by hand."""

import pytest

from tests.workers.engine.fakes import Clock, know_steps_to_be_slow, make_engine, make_sequence, run_to_end
from tests.workers.engine.test_scheduler import advance, ids, make_scheduler
from workers.engine.preemption import MAX_PREEMPTIONS


def test_a_better_tier_takes_the_tails_seat_and_the_tail_goes_on_after_it() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for i, tier in enumerate((1, 2)):
        scheduler.add(make_sequence(f"s{i}", 3, tier=tier, arrival=i))
    advance(scheduler)
    scheduler.add(make_sequence("urgent", 3, tier=0, arrival=2))
    scheduler.add(make_sequence("next", 3, tier=1, arrival=3))
    assert set(ids(advance(scheduler))) == {"s0", "urgent"}
    assert {sequence.id for sequence in scheduler.waiting} == {"s1", "next"}


def test_no_more_give_way_than_one_newcomer_needs_and_nobody_else_starts_meanwhile() -> None:
    scheduler = make_scheduler(max_num_seqs=4, num_blocks=8, token_budget=64)
    for i in range(4):
        scheduler.add(make_sequence(f"s{i}", 7, tier=2, arrival=i))
    advance(scheduler)
    scheduler.add(make_sequence("urgent", 7, tier=0, arrival=5))
    scheduler.add(make_sequence("tiny", 1, tier=0, arrival=6))
    assert "tiny" not in ids(advance(scheduler))
    assert [sequence.id for sequence in scheduler.waiting if sequence.id.startswith("s")] == ["s3"]
    assert scheduler.preemption.num == 1


def test_an_aged_sequence_keeps_its_seat() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("old", 3, tier=2, arrival=0))
    advance(scheduler, now=0.0)
    scheduler.add(make_sequence("urgent", 3, tier=0, arrival=34))
    assert ids(advance(scheduler, now=34.0)) == ["old"]  # by now it counts as high itself


def test_equal_tiers_do_not_take_each_others_seats() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(make_sequence("a", 3, tier=1, arrival=1))
    advance(scheduler)
    scheduler.add(make_sequence("b", 3, tier=1, arrival=0))
    for _ in range(5):
        assert ids(advance(scheduler)) == ["a"]


def test_a_sequence_gives_its_seat_up_three_times_at_most() -> None:
    scheduler = make_scheduler(max_num_seqs=1, num_blocks=200)
    scheduler.add(make_sequence("low", 3, tier=2, arrival=0))
    advance(scheduler)
    for i in range(MAX_PREEMPTIONS + 1):
        urgent = make_sequence(f"urgent {i}", 3, tier=0, arrival=1)
        scheduler.add(urgent)
        running = ids(advance(scheduler))
        assert running == (["low"] if i == MAX_PREEMPTIONS else [urgent.id])
        scheduler.remove(urgent)
        advance(scheduler)


def test_nobody_gives_way_for_one_that_would_not_fit_even_then() -> None:
    scheduler = make_scheduler(max_num_seqs=2, num_blocks=8)
    scheduler.add(make_sequence("high", 20, tier=0, arrival=0))
    scheduler.add(make_sequence("low", 3, tier=2, arrival=1))
    advance(scheduler)
    advance(scheduler)
    scheduler.add(make_sequence("large", 24, tier=0, arrival=2))
    advance(scheduler)
    assert scheduler.preemption.num == 0


def test_those_that_gave_way_long_ago_are_named() -> None:
    clock = Clock()
    engine = make_engine(max_num_seqs=1, clock=clock)
    engine.add(make_sequence("low", 3, tier=2, max_tokens=30))
    engine.step()
    engine.add(make_sequence("urgent", 3, tier=0, max_tokens=30))
    engine.add(make_sequence("never ran", 3, tier=2, max_tokens=30))
    clock.now = 5.0
    engine.step()
    assert engine.starved_ids(10.0) == []
    clock.now = 15.0
    assert engine.starved_ids(10.0) == ["low"]


def test_below_the_low_watermark_nobody_starts_until_the_high_one_is_reached() -> None:
    scheduler = make_scheduler(num_blocks=20, watermark_low=0.1, watermark_high=0.5, token_budget=64)
    big, small = make_sequence("big", 60, arrival=0), make_sequence("small", 12, arrival=1)
    for sequence in (big, small):
        scheduler.add(sequence)
    advance(scheduler)
    assert scheduler.blocks.num_available == 2
    late = make_sequence("late", 4, arrival=2)
    scheduler.add(late)
    advance(scheduler)
    scheduler.remove(small)
    advance(scheduler)
    assert late in scheduler.waiting  # one block would fit, beside the two of the low watermark
    scheduler.remove(big)
    advance(scheduler)
    assert late in scheduler.running


@pytest.mark.parametrize(("seconds_per_block", "is_copied"), [(0.001, True), (100.0, False)])
def test_blocks_are_copied_away_when_that_takes_less_time_than_computing_them(
    seconds_per_block: float, is_copied: bool
) -> None:
    engine = make_engine(num_blocks=9, host_blocks=40)
    know_steps_to_be_slow(engine)  # a second a token
    engine.step_time.seconds_per_block = seconds_per_block
    for i in range(4):
        engine.add(make_sequence(f"s{i}", 6, arrival=i, max_tokens=12))
    run_to_end(engine)
    preemption = engine.scheduler.preemption
    assert (preemption.num_swaps > 0, preemption.num_recomputes > 0) == (is_copied, not is_copied)
