"""What is learnt of steps, and how large it lets a chunk of a prompt be."""

import random

import pytest

from tests.workers.engine.fakes import make_engine, make_sequence
from workers.engine.plan import Plan
from workers.engine.step_time import NUM_FIRST, StepTime


def seconds_of(num_rows: int, num_pairs: int) -> float:
    return 0.005 + 2e-4 * num_rows + 3e-8 * num_pairs


def make_step_time(num_steps: int = 60, noise: float = 0.0) -> StepTime:
    """One that saw steps of many kinds."""
    rng, step_time = random.Random(1), StepTime()
    for _ in range(num_steps):
        num_rows = rng.choice([1, 8, 64, 256])
        num_pairs = num_rows * rng.randint(10, 2000)
        step_time.observe(seconds_of(num_rows, num_pairs) * rng.uniform(1 - noise, 1 + noise), num_rows, num_pairs)
    return step_time


@pytest.mark.parametrize(("num_rows", "num_pairs"), [(1, 100), (32, 20_000), (500, 400_000)])
def test_steps_are_predicted_from_those_that_were_seen(num_rows: int, num_pairs: int) -> None:
    assert make_step_time().seconds(num_rows, num_pairs) == pytest.approx(seconds_of(num_rows, num_pairs), rel=0.01)
    noisy = make_step_time(noise=0.1).seconds(num_rows, num_pairs)
    assert noisy == pytest.approx(seconds_of(num_rows, num_pairs), rel=0.25)


def test_what_decoding_says_nothing_about_is_remembered() -> None:
    step_time = make_step_time()
    for _ in range(2000):
        step_time.observe(seconds_of(8, 4000), 8, 4000)
    assert step_time.seconds(256, 200_000) == pytest.approx(seconds_of(256, 200_000), rel=0.05)


def test_a_machine_that_became_slower_is_believed() -> None:
    step_time = make_step_time()
    for num_rows, context in [(8, 500), (64, 100), (256, 900), (1, 2000)] * 80:
        step_time.observe(3 * seconds_of(num_rows, num_rows * context), num_rows, num_rows * context)
    assert step_time.seconds(64, 32_000) == pytest.approx(3 * seconds_of(64, 32_000), rel=0.1)


@pytest.mark.parametrize("context", [0, 1000])
def test_the_most_rows_that_keep_a_time_are_as_many_as_the_prediction_allows(context: int) -> None:
    step_time = make_step_time()
    most = step_time.most_rows(0.05, 8, 4000, context)

    def predicted(num_new: int) -> float:
        return step_time.seconds(8 + num_new, 4000 + num_new * context + num_new * num_new // 2)

    assert predicted(most) <= 0.0501 and predicted(most + 2) > 0.05
    assert step_time.most_rows(0.001, 8, 4000, context) == 0


def plan_chunk(
    num_missing: int,
    *,
    target_itl_ms: float | None,
    num_decodes: int = 1,
    num_prompts: int = 1,
    num_before: int = 0,
) -> int:
    """How many of a prompt's tokens a step takes beside others that decode, and of so many prompts in all."""
    plan = Plan(512, make_step_time(), target_itl_ms)
    for i in range(num_decodes):
        plan.take(make_sequence(str(i), 1), 1)
    plan.keep_target(num_prompts)
    return plan.most(num_before, num_missing, 16)


def test_a_chunk_beside_a_running_sequence_keeps_the_target_in_whole_blocks() -> None:
    # 0.005 + 2e-4 * rows: 75 rows take 20 ms, so 64 join the one that is there.
    assert plan_chunk(500, target_itl_ms=20) == 64
    assert plan_chunk(500, target_itl_ms=20, num_before=8) == 72  # so that the next one begins with a block
    assert plan_chunk(30, target_itl_ms=20) == 30
    assert plan_chunk(1000, target_itl_ms=1000) == 511
    assert plan_chunk(1000, target_itl_ms=20, num_decodes=0) == 512


def test_without_a_target_a_chunk_may_make_the_step_three_times_as_long() -> None:
    assert plan_chunk(500, target_itl_ms=None, num_decodes=40) == 128  # 5 + 0.2 * 40 ms, and 130 rows
    assert plan_chunk(500, target_itl_ms=None, num_decodes=0) == 500


def test_without_a_target_a_chunk_may_take_what_nobody_notices() -> None:
    # Two that decode take 5.4 ms alone; of the 22.6 up to 28 ms 113 rows are made.
    assert plan_chunk(500, target_itl_ms=None, num_decodes=2) == 112


def test_only_a_target_that_was_set_keeps_the_last_block_out_of_a_chunk() -> None:
    # 36 that decode take 12.2 ms alone; in the 24.4 up to three times as much about 120 rows are made.
    assert plan_chunk(500, target_itl_ms=36.6, num_decodes=36) == 112
    assert plan_chunk(500, target_itl_ms=None, num_decodes=36) == 128
    assert plan_chunk(500, target_itl_ms=36.6, num_decodes=36, num_before=8) == 120
    assert plan_chunk(500, target_itl_ms=None, num_decodes=36, num_before=8) == 120


def test_the_more_prompts_wait_beside_few_that_decode_the_longer_a_chunk_may_be() -> None:
    assert plan_chunk(500, target_itl_ms=None, num_decodes=40, num_prompts=20) == 128
    assert plan_chunk(500, target_itl_ms=None, num_decodes=40, num_prompts=40) == 320  # up to 78 ms; pairs count too
    assert plan_chunk(500, target_itl_ms=None, num_decodes=40, num_prompts=70) == 472  # what is left of the budget
    assert plan_chunk(500, target_itl_ms=20, num_decodes=1, num_prompts=60) == 64, "a target that is set is kept"


def test_a_prompt_gets_on_by_a_block_however_tight_the_target() -> None:
    assert plan_chunk(500, target_itl_ms=1) == 16
    assert plan_chunk(500, target_itl_ms=1, num_before=10) == 6


def test_nothing_is_held_back_before_steps_are_known() -> None:
    plan = Plan(512, StepTime(), 1.0)
    plan.take(make_sequence("a", 1), 1)
    plan.keep_target(1)
    assert plan.most(0, 500, 16) == 500


def test_an_engine_under_a_target_gives_the_same_tokens() -> None:
    outputs = []
    for target_itl_ms in (None, 0.001):
        engine = make_engine(target_itl_ms=target_itl_ms, token_budget=32)
        engine.add(make_sequence("a", 3, max_tokens=40))
        for _ in range(NUM_FIRST + 1):
            engine.step()
        engine.add(make_sequence("b", 30, max_tokens=10))
        seen: dict[str, list[int]] = {}
        while engine.has_work:
            for output in engine.step():
                seen.setdefault(output.sequence_id, []).append(output.token_id)
            engine.scheduler.check_invariants()
        outputs.append(seen)
    assert outputs[0] == outputs[1]
