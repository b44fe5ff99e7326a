"""Steps that are launched ahead, gathered by slot and replayed from graphs give what a plain loop gives."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.workers.engine.fakes import (
    Clock,
    FakeModel,
    expected_samples,
    know_steps_to_be_slow,
    logits_of,
    make_config,
    make_sequence,
    run_to_end,
)
from tests.workers.engine.graph_world import (
    OVERLAP,
    expected_tokens,
    make_engine,
    make_sequences,
    num_replays,
    runner_of,
    tokens,
)
from tests.workers.engine.host_accelerator import HostAccelerator
from workers.engine.batch import build_batch
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.sequence import Status


@OVERLAP
@pytest.mark.parametrize("has_graphs", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"max_num_seqs": 3}, {"token_budget": 9}, {"num_blocks": 9}])
def test_outputs_are_those_of_each_sequence_alone(
    sizes: dict[str, int], has_graphs: bool, is_overlapping: bool
) -> None:
    engine = make_engine(is_overlapping=is_overlapping, has_graphs=has_graphs, **sizes)
    sequences = make_sequences()
    expected = expected_tokens(engine, sequences)
    assert tokens(engine, sequences) == expected


@OVERLAP
def test_pure_decode_steps_are_replayed_and_others_are_not(is_overlapping: bool) -> None:
    engine = make_engine(is_overlapping=is_overlapping)
    sequences = [make_sequence(f"s{i}", 3, max_tokens=10) for i in range(3)]
    tokens(engine, sequences)
    assert (num_replays(engine), engine.num_steps) == (9, 10)


def test_a_step_is_launched_before_the_tokens_of_the_one_before_are_read() -> None:
    accelerator = HostAccelerator()
    engine = make_engine(accelerator=accelerator, is_overlapping=True)
    engine.add(make_sequence("a", 3, max_tokens=10))
    model = runner_of(engine).model
    assert isinstance(model, FakeModel)
    model.num_rows.clear()
    [output] = engine.step()
    assert len(model.num_rows) == 2  # two steps are computed
    [following] = engine.step()
    assert [output.token_id, following.token_id] == [
        sample.token_id for sample in expected_samples(make_sequence("a", 3, max_tokens=2), engine.config)
    ]
    engine.abort("a")
    engine.close()


@OVERLAP
@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 2},
        {"frequency_penalty": 0.7, "repetition_penalty": 1.2},
        {"bad_words": ((3, 4), (5,))},
        {"logit_bias": {7: 2.0}},
        {"min_tokens": 3, "ignore_eos": False},
        {"prompt_logprobs": 1},
    ],
)
def test_rows_whose_logits_the_host_must_see_are_the_same_beside_others(
    params: dict[str, Any], is_overlapping: bool
) -> None:
    engine = make_engine(is_overlapping=is_overlapping)
    sequences = make_sequences()[:4] + [make_sequence("special", 5, max_tokens=6, temperature=0.7, seed=4, **params)]
    expected = expected_tokens(engine, sequences)
    assert tokens(engine, sequences) == expected
    assert num_replays(engine) > 0


@OVERLAP
def test_outputs_are_the_same_when_blocks_go_to_the_host_and_come_back(is_overlapping: bool) -> None:
    engine = make_engine(is_overlapping=is_overlapping, num_blocks=9, host_blocks=60)
    know_steps_to_be_slow(engine)
    sequences = make_sequences()
    expected = expected_tokens(engine, sequences)
    assert tokens(engine, sequences) == expected
    assert engine.stats().preemptions_swap > 0


@OVERLAP
def test_choices_and_beams_are_those_of_the_plain_runner(is_overlapping: bool) -> None:
    def outputs(engine: Engine, **params: Any) -> object:
        options = {"max_tokens": 9, "temperature": 0.9} | params
        choices = [make_sequence(f"g/{i}", [5, 6, 7], seed=choice_seed(3, i), **options) for i in range(3)]
        for i, sequence in enumerate(choices):
            sequence.choice = i
        engine.add_group(SequenceGroup("g", choices))
        engine.add(make_sequence("other", 4, max_tokens=12))
        found = run_to_end(engine)
        engine.close()
        return {id: sorted(map(repr, each)) for id, each in found.items()}

    for params in ({"n": 3}, {"n": 3, "num_beams": 3, "temperature": 0.0}):
        plain = build_engine(make_config(block_size=8), FakeModel(), device="cpu", dtype=torch.float32, clock=Clock())
        assert outputs(make_engine(is_overlapping=is_overlapping), **params) == outputs(plain, **params)


@OVERLAP
@pytest.mark.parametrize("seed", range(20))
def test_outputs_are_the_same_however_sequences_come_and_go(seed: int, is_overlapping: bool) -> None:
    rng = random.Random(seed)
    engine = make_engine(
        is_overlapping=is_overlapping, max_num_seqs=rng.randint(1, 6), token_budget=16, num_blocks=rng.randint(9, 20)
    )
    waiting = [
        make_sequence(
            f"s{i}",
            rng.randint(1, 25),
            max_tokens=rng.randint(1, 30),
            temperature=rng.choice([0.0, 0.8]),
            top_p=rng.choice([1.0, 0.9]),
            logprobs=rng.choice([None, None, None, 1]),
            tier=rng.randint(0, 2),
            seed=i,
        )
        for i in range(12)
    ]
    expected = expected_tokens(engine, waiting)
    found: dict[str, list[int]] = {id: [] for id in expected}
    gone = set()
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.5:
            engine.add(waiting.pop())
        elif rng.random() < 0.05:
            gone.add(id := rng.choice(sorted(expected)))
            engine.abort(id)
        for output in engine.step():
            assert output.error is None
            found[output.sequence_id].append(output.token_id)
        engine.scheduler.check_invariants()
    engine.close()
    assert all(found[id] == expected[id][: len(found[id])] for id in gone)
    assert {id: ids for id, ids in found.items() if id not in gone} == {
        id: ids for id, ids in expected.items() if id not in gone
    }


def test_as_many_samples_as_rows_are_no_decode_step_when_a_groups_leader_has_some_of_them() -> None:
    engine = make_engine()
    leader, other = make_sequence("leader", [5]), make_sequence("other", 9)
    for sequence, blocks in ((leader, [0]), (other, [1, 2])):
        sequence.status, sequence.block_table = Status.RUNNING, blocks
    batch = build_batch([leader, other], [1, 1], 8)
    batch.sampled, batch.logits_rows, batch.output_indices = [leader, leader], [0, 0], [0, 0]
    samples = runner_of(engine).run(batch).samples
    assert [sample.token_id for sample in samples] == [int(logits_of([5]).argmax())] * 2
    assert num_replays(engine) == 0


def test_padding_rows_touch_no_block_of_the_cache() -> None:
    engine = make_engine(num_blocks=6)
    runner = runner_of(engine)
    runner.kv_cache[:6] = -5.0
    sequences = [make_sequence(f"s{i}", 2, max_tokens=5) for i in range(3)]  # a graph of four rows
    tokens(engine, sequences)
    assert num_replays(engine) == 4
    assert int((runner.kv_cache[:6] != -5.0).sum()) == 2 * 3 * 6  # K and V of six tokens each: the last is not computed


def test_step_time_learns_from_what_the_device_took() -> None:
    engine = make_engine(is_overlapping=True)
    tokens(engine, [make_sequence("a", 3, max_tokens=20)])
    assert engine.step_time.is_known and engine.step_time.seconds(1, 10) > 0


def test_sequences_of_the_real_length_keep_their_prompt_logprobs() -> None:
    plain = build_engine(make_config(block_size=8), FakeModel(), device="cpu", dtype=torch.float32, clock=Clock())
    found = []
    for engine in (make_engine(is_overlapping=True), plain):
        engine.add(make_sequence("a", 13, max_tokens=3, logprobs=1, prompt_logprobs=2))
        engine.add(make_sequence("b", 13, max_tokens=3))
        found.append({id: [replace(each) for each in outputs] for id, outputs in run_to_end(engine).items()})
        engine.close()
    assert found[0] == found[1]
