"""What an engine tells of itself: every figure, and those of sequences that gave way."""

from dataclasses import fields

from api.engine_metrics import COUNTERS, GAUGES
from tests.workers.engine.fakes import know_steps_to_be_slow, make_engine, make_sequence, run_to_end
from workers.engine.engine import Engine
from workers.engine.stats import EngineStats


def run_short_of_blocks(engine: Engine) -> int:
    """Sequences that cannot all stay; how often one gave way."""
    sequences = [make_sequence(f"s{i}", 6, arrival=i, max_tokens=12) for i in range(4)]
    for sequence in sequences:
        engine.add(sequence)
    run_to_end(engine)
    return sum(sequence.num_preemptions for sequence in sequences)


def test_every_figure_of_an_engine_is_a_metric() -> None:
    assert {*GAUGES, *COUNTERS} == {field.name for field in fields(EngineStats)}


def test_sequences_that_are_computed_again_are_counted_with_their_tokens() -> None:
    engine = make_engine(num_blocks=9)
    num_preemptions = run_short_of_blocks(engine)
    stats = engine.stats()
    assert (stats.preemptions_recompute, stats.preemptions_swap) == (num_preemptions, 0)
    assert stats.recomputed_tokens >= 6 * num_preemptions > 0
    assert (stats.swapped_out_bytes, stats.swapped_in_bytes, stats.move_seconds) == (0, 0, 0.0)


def test_sequences_that_are_copied_away_are_counted_with_bytes_and_seconds() -> None:
    engine = make_engine(num_blocks=9, host_blocks=40)
    know_steps_to_be_slow(engine)
    num_preemptions = run_short_of_blocks(engine)
    stats = engine.stats()
    assert (stats.preemptions_recompute, stats.recomputed_tokens) == (0, 0)
    assert stats.preemptions_swap == num_preemptions > 0
    assert stats.swapped_out_bytes > 0 and stats.swapped_in_bytes > 0 and stats.move_seconds > 0
