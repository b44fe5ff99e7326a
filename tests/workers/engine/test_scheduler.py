"""Who runs, who waits and who gives way, in worlds small enough to check by hand."""

from typing import Any

import pytest

from tests.workers.engine.fakes import Clock, make_engine, make_sequence, run_to_end
from workers.engine.admission import MAX_PASSED_OVER
from workers.engine.batch import Batch, build_batch
from workers.engine.preemption import MAX_PREEMPTIONS
from workers.engine.scheduler import Scheduler


def make_scheduler(**overrides: Any) -> Scheduler:
    return make_engine(**overrides).scheduler


def advance(scheduler: Scheduler, now: float = 0.0) -> Batch:
    """One step in which every sampled sequence gets token 7."""
    batch = scheduler.schedule(now)
    assert batch is not None
    if batch:
        scheduler.retire()
    for sequence in batch.sampled:
        sequence.token_ids.append(7)
    scheduler.check_invariants()
    return batch


def ids(batch: Batch) -> list[str]:
    return [sequence.id for sequence in batch.sequences]


def test_arriving_prompts_do_not_starve_running_sequences() -> None:
    scheduler = make_scheduler(token_budget=8, max_num_seqs=4, num_blocks=1000)
    running = make_sequence("running", 2)
    scheduler.add(running)
    advance(scheduler)
    for i in range(30):
        scheduler.add(make_sequence(f"prompt {i}", 20, arrival=i))
        batch = advance(scheduler)
        assert "running" in ids(batch)
        assert len(batch.input_ids) <= 8
    assert running.num_output_tokens == 31


def test_one_step_computes_single_tokens_then_the_next_chunks() -> None:
    scheduler = make_scheduler(token_budget=8)
    for i, num_tokens in enumerate((3, 9, 9)):
        scheduler.add(make_sequence(f"s{i}", num_tokens, arrival=i))
    batch = advance(scheduler)
    assert list(zip(ids(batch), batch.num_new_tokens, strict=True)) == [("s0", 3), ("s1", 5)]
    batch = advance(scheduler)
    assert list(zip(ids(batch), batch.num_new_tokens, strict=True)) == [("s0", 1), ("s1", 4), ("s2", 3)]


def test_an_advanced_batch_equals_one_built_anew() -> None:
    scheduler = make_scheduler()
    for i in range(3):
        scheduler.add(make_sequence(f"s{i}", 2 + i, arrival=i))
    first = advance(scheduler)
    previous = advance(scheduler)
    assert previous is not first
    gained = []
    for _ in range(6):
        batch = scheduler.schedule(0.0)
        assert batch is previous
        gained += batch.new_blocks or []
        batch.new_blocks = None
        for sequence in batch.sequences:  # as if it were not in flight yet
            sequence.num_flying_tokens = sequence.num_future_tokens = 0
        assert batch == build_batch(batch.sequences, batch.num_new_tokens, 4)
        for sequence in batch.sequences:
            sequence.num_flying_tokens = sequence.num_future_tokens = 1
        scheduler.retire()
        for sequence in batch.sampled:
            sequence.token_ids.append(7)
    # The rows compute their 4th, 5th and 6th token in the first of these steps; 5th and 9th enter a block.
    assert [(row, column) for row, column, _ in gained] == [(1, 1), (0, 1), (2, 2), (1, 2), (0, 2)]


def test_a_prompt_chunk_of_one_token_is_not_taken_for_a_decode_row() -> None:
    engine = make_engine(token_budget=1, max_num_seqs=1)
    engine.add(make_sequence("a", 3, max_tokens=2))
    assert [len(engine.step()) for _ in range(4)] == [0, 0, 1, 1]


def test_admission_reserves_the_whole_prompt() -> None:
    scheduler = make_scheduler(num_blocks=5, token_budget=8)
    scheduler.add(make_sequence("long", 16, arrival=0))
    scheduler.add(make_sequence("next", 8, arrival=1))
    advance(scheduler)
    assert scheduler.blocks.num_available == 1  # two of the four are not taken yet
    assert [sequence.id for sequence in scheduler.waiting] == ["next"]
    assert ids(advance(scheduler)) == ["long"]


def test_a_running_sequence_cannot_take_what_is_reserved_for_a_prompt() -> None:
    scheduler = make_scheduler(num_blocks=6, token_budget=4, max_num_seqs=2)
    scheduler.add(make_sequence("decoding", 4, tier=0))
    advance(scheduler)
    scheduler.add(make_sequence("prompt", 20, tier=0, arrival=1))
    advance(scheduler)  # The decoding one enters its second block, the prompt reserves nothing: it needs five.
    assert [sequence.id for sequence in scheduler.waiting] == ["prompt"]
    scheduler.add(make_sequence("shorter", 16, tier=0, arrival=2))
    advance(scheduler)
    assert scheduler.blocks.num_available == 0
    for _ in range(2):
        assert ids(advance(scheduler)) == ["decoding", "shorter"]
    assert ids(advance(scheduler)) == ["decoding"]  # Its third block comes from the tail, which has computed 9 of 16.


def test_admission_leaves_the_watermark_to_running_sequences() -> None:
    scheduler = make_scheduler(num_blocks=10, watermark_low=0.2, watermark_high=0.2, token_budget=64)
    scheduler.add(make_sequence("a", 16, arrival=0))
    scheduler.add(make_sequence("b", 20, arrival=1))
    scheduler.add(make_sequence("c", 16, arrival=2))
    advance(scheduler)
    assert {sequence.id for sequence in scheduler.running} == {"a", "c"}


def test_the_watermark_never_keeps_out_the_only_sequence() -> None:
    scheduler = make_scheduler(num_blocks=4, watermark_low=0.5, watermark_high=0.5)
    scheduler.add(make_sequence("a", 16))
    assert ids(advance(scheduler)) == ["a"]


def make_blocked() -> Scheduler:
    """Three blocks of 100: "holder" keeps one, "head" waits for three, so that two sequences may pass at a time."""
    scheduler = make_scheduler(block_size=100, num_blocks=3, token_budget=500)
    scheduler.add(make_sequence("holder", 5, arrival=0))
    advance(scheduler)
    scheduler.add(make_sequence("head", 250, arrival=1))
    return scheduler


def pass_head(scheduler: Scheduler, number: int, now: float = 0.0) -> bool:
    """Whether a short sequence behind the head gets in; it leaves again after one step."""
    short = make_sequence(f"short {number}", 5, arrival=2 + number)
    scheduler.add(short)
    is_admitted = short in advance(scheduler, now).sequences
    scheduler.remove(short)
    return is_admitted


def test_a_head_that_does_not_fit_is_passed_over_sixteen_times_and_then_closes_the_door() -> None:
    scheduler = make_blocked()
    assert [pass_head(scheduler, i) for i in range(MAX_PASSED_OVER + 2)] == [True] * MAX_PASSED_OVER + [False] * 2
    scheduler.remove(scheduler.running[0])
    assert ids(advance(scheduler)) == ["head"]
    assert scheduler.running[0].num_passed_over == 0


def test_a_head_that_was_passed_over_for_two_seconds_closes_the_door() -> None:
    scheduler = make_blocked()
    assert [pass_head(scheduler, i, now) for i, now in enumerate((10.0, 11.9, 12.0))] == [True, True, False]


def test_an_idle_engine_always_starts_its_head() -> None:
    scheduler = make_scheduler(num_blocks=4, watermark_low=0.9, watermark_high=0.9)
    for i in range(3):
        scheduler.add(make_sequence(f"s{i}", 16, arrival=i))
    for i in range(3):
        assert ids(advance(scheduler)) == [f"s{i}"]
        scheduler.remove(scheduler.running[0])


def make_full(*arrivals: tuple[str, int, float], num_blocks: int) -> Scheduler:
    """Sequences (id, tier, arrival) that fill their one block each, so that the next step needs a block for each."""
    scheduler = make_scheduler(num_blocks=num_blocks)
    for id, tier, arrival in arrivals:
        scheduler.add(make_sequence(id, 4, tier=tier, arrival=arrival))
    advance(scheduler)
    return scheduler


def test_the_latest_of_the_lowest_tier_gives_way() -> None:
    scheduler = make_full(("low", 2, 1), ("later low", 2, 2), ("high", 0, 3), ("normal", 1, 0), num_blocks=5)
    # One block is free, four are needed: "high" takes it, "normal" gets one from "later low", "low" only its own.
    assert ids(advance(scheduler)) == ["high", "normal"]
    assert [sequence.id for sequence in scheduler.waiting] == ["later low", "low"]


def test_a_victim_is_never_one_that_was_scheduled_in_the_same_step() -> None:
    scheduler = make_full(("first", 1, 0), ("second", 1, 1), num_blocks=3)
    batch = advance(scheduler)  # "first" takes the free block; "second" finds none and may only give way itself
    assert ids(batch) == ["first"]
    [second] = scheduler.waiting
    assert (second.id, second.num_preemptions, second.num_tokens) == ("second", 1, 5)


def test_a_sequence_that_may_not_give_way_again_is_not_spared_at_the_cost_of_one_that_was_scheduled() -> None:
    scheduler = make_full(("first", 1, 0), ("second", 1, 1), ("spared", 1, 2), num_blocks=3)
    scheduler.running[2].num_preemptions = MAX_PREEMPTIONS
    assert ids(advance(scheduler)) == ["first"]  # with the block of "second"; now "spared" finds none
    assert [sequence.id for sequence in scheduler.waiting] == ["second", "spared"]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    scheduler = make_scheduler(num_blocks=3)
    scheduler.add(make_sequence("a", 4, arrival=0))
    scheduler.add(make_sequence("b", 8, arrival=1))
    advance(scheduler)
    scheduler.add(make_sequence("tiny", 1, arrival=2))
    assert ids(advance(scheduler)) == ["a"]  # It takes one block of the two that "b" gives up.
    assert scheduler.blocks.num_available == 1
    assert ids(advance(scheduler)) == ["a", "tiny"]


def test_a_better_tier_that_came_later_is_not_the_one_to_give_way() -> None:
    scheduler = make_scheduler(num_blocks=3)
    scheduler.add(make_sequence("low", 3, tier=2, arrival=0))
    advance(scheduler)
    scheduler.add(make_sequence("high", 4, tier=0, arrival=1))
    assert ids(advance(scheduler)) == ["low", "high"]
    assert ids(advance(scheduler)) == ["high"]


def test_one_need_takes_one_victim() -> None:
    scheduler = make_full(("a", 1, 0), ("b", 1, 1), ("c", 1, 2), num_blocks=4)
    assert ids(advance(scheduler)) == ["a", "b"]
    assert [sequence.id for sequence in scheduler.waiting] == ["c"]


def test_a_preempted_sequence_returns_before_newcomers_of_its_tier() -> None:
    scheduler = make_full(("a", 1, 0), ("b", 1, 1), num_blocks=3)
    advance(scheduler)
    scheduler.add(make_sequence("newcomer", 4, arrival=2))
    scheduler.remove(scheduler.running[0])
    assert ids(advance(scheduler)) == ["b", "newcomer"]


def test_a_sequence_is_preempted_a_few_times_at_most_then_others_give_way() -> None:
    scheduler = make_full(("a", 1, 0), ("b", 1, 1), ("c", 1, 2), num_blocks=4)
    scheduler.running[2].num_preemptions = MAX_PREEMPTIONS
    assert ids(advance(scheduler)) == ["a", "c"]
    assert [sequence.id for sequence in scheduler.waiting] == ["b"]


def test_scarce_blocks_do_not_make_sequences_preempt_each_other_for_ever() -> None:
    engine = make_engine(num_blocks=16, watermark_low=0.0)
    sequences = [make_sequence(f"s{i}", 8, arrival=i, max_tokens=40) for i in range(8)]
    for sequence in sequences:
        engine.add(sequence)
    assert {len(outputs) for outputs in run_to_end(engine).values()} == {40}
    assert max(sequence.num_preemptions for sequence in sequences) <= 2 * MAX_PREEMPTIONS


def started_first(policy: str, now: float, *arrivals: tuple[str, int, float]) -> str:
    scheduler = make_scheduler(policy=policy, max_num_seqs=1)
    for id, tier, arrival in arrivals:
        scheduler.add(make_sequence(id, tier=tier, arrival=arrival))
    return scheduler.schedule(now).sequences[0].id


@pytest.mark.parametrize(
    ("policy", "now", "first"),
    [
        ("aging", 33.9, "high"),  # the low one has waited 33.9 s: level 2 - 3.9 / 2 > 0
        ("aging", 34.0, "low"),  # level 0 and older
        ("fcfs", 20.0, "low"),
    ],
)
def test_waiting_sequences_start_by_aged_tier_then_arrival(policy: str, now: float, first: str) -> None:
    assert started_first(policy, now, ("high", 0, 10.0), ("low", 2, 0.0), ("later high", 0, 11.0)) == first


def test_a_low_sequence_starts_at_last_beside_a_stream_of_high_ones() -> None:
    clock = Clock()
    engine = make_engine(max_num_seqs=1, clock=clock)
    engine.add(make_sequence("low", tier=2, arrival=0.0))
    started = []
    for second in range(60):
        clock.now = float(second)
        engine.add(make_sequence(f"high {second}", tier=0, arrival=clock.now, max_tokens=1))
        started += [output.sequence_id for output in engine.step() if output.sequence_id not in started]
    assert started.index("low") <= 36
