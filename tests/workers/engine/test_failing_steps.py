"""A step that cannot be computed: whom it costs what."""

import pytest

from tests.workers.engine.fakes import make_engine, make_sequence, run_to_end, tokens_of
from tests.workers.engine.meddling import MeddlingRunner
from tests.workers.engine.test_engine import expected_tokens
from workers.engine.errors import EngineBroken


@pytest.mark.parametrize("culprits", [{"a"}, {"d"}, {"b", "g"}])
def test_a_step_that_fails_costs_only_the_sequences_that_are_at_fault(culprits: set[str]) -> None:
    engine = make_engine(token_budget=64)
    runner = MeddlingRunner(engine)
    sequences = [make_sequence(id, arrival=i, temperature=1.0, seed=i) for i, id in enumerate("abcdefg")]
    expected = expected_tokens(sequences)
    for sequence in sequences:
        engine.add(sequence)
    first = tokens_of({output.sequence_id: [output] for output in engine.step()})
    runner.cause, runner.culprits = RuntimeError("no such kernel"), culprits
    outputs = run_to_end(engine)
    errors = {id: each[-1].error for id, each in outputs.items() if each[-1].error is not None}
    assert errors == dict.fromkeys(culprits, "RuntimeError: no such kernel")
    for id in set("abcdefg") - culprits:
        assert first[id] + tokens_of(outputs)[id] == expected[id]
    assert engine.num_free_blocks == 64


def test_a_step_that_fails_once_costs_nobody_anything() -> None:
    engine = make_engine()
    runner = MeddlingRunner(engine)
    sequences = [make_sequence(id, arrival=i) for i, id in enumerate("abc")]
    expected = expected_tokens(sequences)
    for sequence in sequences:
        engine.add(sequence)
    runner.cause, runner.num_failures = RuntimeError("a passing cloud"), 1
    assert tokens_of(run_to_end(engine)) == expected


def test_a_step_that_was_discarded_with_the_one_before_it_is_computed_anew() -> None:
    engine = make_engine(is_overlapping=True, token_budget=3, max_num_seqs=2)
    runner = MeddlingRunner(engine)
    bad, good = make_sequence("bad", 3, max_tokens=1), make_sequence("good", 1, max_tokens=3)
    expected = expected_tokens([good])["good"]
    engine.add(bad)
    engine.add(good)
    runner.cause, runner.culprits = RuntimeError("no such kernel"), {"bad"}
    outputs = run_to_end(engine)
    assert outputs["bad"][-1].error == "RuntimeError: no such kernel"
    assert tokens_of(outputs)["good"] == expected
    engine.close()


def test_an_engine_that_can_compute_nothing_at_all_is_broken() -> None:
    engine = make_engine()
    runner = MeddlingRunner(engine)
    for id in "ab":
        engine.add(make_sequence(id))
    runner.cause = RuntimeError("the device is gone")
    with pytest.raises(EngineBroken, match="none of 2 sequences can be computed: RuntimeError: the device is gone"):
        engine.step()


def test_an_engine_whose_blocks_cannot_be_moved_is_broken_rather_than_wrong() -> None:
    engine = make_engine()
    runner = MeddlingRunner(engine)
    engine.add(make_sequence("a"))
    engine.step()
    engine.scheduler.blocks.fork(engine.scheduler.running[0], other := make_sequence("b"))
    engine.scheduler.blocks.allocate(other, 6)  # a copy is to be made before the next step
    runner.cause = RuntimeError("no such block")
    with pytest.raises(EngineBroken, match="no such block"):
        engine.step()


def test_a_sequence_aborted_in_a_step_that_fails_is_not_reported() -> None:
    engine = make_engine()
    runner = MeddlingRunner(engine)
    engine.add(make_sequence("a"))
    engine.add(make_sequence("b"))
    runner.aborts, runner.cause = ["a"], RuntimeError()
    assert [output.sequence_id for output in engine.step()] == ["b"]
    assert not engine.has_work


def test_a_step_that_fails_shares_nothing_of_what_it_was_to_compute() -> None:
    engine = make_engine(token_budget=8)
    runner = MeddlingRunner(engine)
    engine.add(make_sequence("bad", range(13)))
    engine.step()
    assert engine.scheduler.blocks.num_cached_blocks == 2
    runner.cause = RuntimeError("no such kernel")
    assert [output.sequence_id for output in engine.step()] == ["bad"]
    assert engine.scheduler.blocks.num_cached_blocks == 2  # of the step before, and not the third


def test_a_sequence_aborted_in_flight_shares_nothing_of_what_that_step_computes() -> None:
    engine = make_engine(token_budget=8)
    runner = MeddlingRunner(engine)
    engine.add(make_sequence("gone", range(13)))
    engine.step()
    runner.aborts = ["gone"]
    assert engine.step() == []
    assert engine.scheduler.blocks.num_cached_blocks == 2
