"""What the next step may take for granted while the one before it is still computed."""

from typing import Any, Self

import pytest

from tests.workers.engine.fakes import make_engine, make_sequence
from tests.workers.engine.test_scheduler import ids, make_scheduler
from workers.engine.batch import Batch
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence


class AnyToken:
    """A grammar that allows everything."""

    is_finished = False

    def mask(self) -> bytes:
        return b"\xff" * 7

    def accept(self, token_id: int) -> None:
        pass

    def fork(self) -> Self:
        return self


def plan(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule(0.0)
    assert batch is not None
    return batch


def retire(scheduler: Scheduler, batch: Batch) -> None:
    """Land the step, in which every sequence got token 7."""
    scheduler.retire()
    for sequence in batch.sampled:
        sequence.append(7)


def with_grammar() -> Sequence:
    sequence = make_sequence("bound", 3)
    sequence.grammar = AnyToken()
    return sequence


@pytest.mark.parametrize(
    "bound",
    [
        make_sequence("bound", 3, frequency_penalty=1.0),
        make_sequence("bound", 3, presence_penalty=1.0),
        make_sequence("bound", 3, repetition_penalty=1.1),
        make_sequence("bound", 3, bad_words=((1, 2),)),
        with_grammar(),
    ],
)
def test_a_row_whose_next_token_depends_on_the_last_one_waits_until_that_is_known(bound: Sequence) -> None:
    scheduler = make_scheduler(is_overlapping=True)
    scheduler.add(make_sequence("free", 3, temperature=1.0, seed=1))
    scheduler.add(bound)
    first = plan(scheduler)
    assert set(ids(first)) == {"free", "bound"}
    second = plan(scheduler)
    assert ids(second) == ["free"]
    retire(scheduler, first)
    assert set(ids(plan(scheduler))) == {"free", "bound"}


@pytest.mark.parametrize(("num_prompt_tokens", "limits"), [(3, {"max_tokens": 1}), (63, {"max_tokens": 8})])
def test_nothing_is_computed_behind_the_last_token_that_there_may_be(
    num_prompt_tokens: int, limits: dict[str, Any]
) -> None:
    scheduler = make_scheduler(is_overlapping=True, token_budget=64, max_model_len=64)
    scheduler.add(make_sequence("last", num_prompt_tokens, **limits))
    assert [sequence.id for sequence in plan(scheduler).sampled] == ["last"]
    assert not plan(scheduler)


def test_blocks_of_a_sequence_aborted_in_flight_are_free_when_the_step_has_retired_and_not_before() -> None:
    engine = make_engine(is_overlapping=True, num_blocks=8)
    engine.add(make_sequence("a", 6))
    engine.step()  # and the next one is computed already
    engine.abort("a")
    engine.scheduler.check_invariants()
    assert engine.num_free_blocks == 6
    assert engine.step() == []
    engine.scheduler.check_invariants()
    assert engine.num_free_blocks == 8
    engine.close()


def test_what_a_step_computes_is_found_once_it_has_retired_and_not_while_it_is_computed() -> None:
    scheduler = make_scheduler(is_overlapping=True)
    scheduler.add(make_sequence("first", range(9)))
    first = plan(scheduler)
    scheduler.add(make_sequence("second", range(9), arrival=1))
    assert (scheduler.blocks.num_cached_blocks, ids(plan(scheduler))) == (0, ["first"])
    retire(scheduler, first)
    assert scheduler.blocks.num_cached_blocks == 2
    batch = plan(scheduler)
    assert dict(zip(ids(batch), batch.num_new_tokens, strict=True)) == {"first": 1, "second": 1}
