"""Sequences that get an embedding in the place of tokens, cut and interrupted in every way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu.library import library
from tests.checkpoints import make_checkpoint
from tests.workers.engine import graph_world
from tests.workers.engine.fakes import (
    Clock,
    FakeModel,
    expected_samples,
    make_config,
    make_engine,
    make_sequence,
    run_to_end,
    state_of,
)
from tests.workers.models.paged import load_recorded
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.errors import PromptTooLong
from workers.engine.outputs import StepOutput
from workers.engine.runner import Model
from workers.engine.sequence import Sequence
from workers.models.loader import load_model

POOLINGS = pytest.mark.parametrize("pooling", ["mean", "last"])


def pooled(id: str, prompt: Any, pooling: str, **options: Any) -> Sequence:
    return make_sequence(id, prompt, max_tokens=0, pooling=pooling, **options)


def expected(sequence: Sequence) -> list[float]:
    token_ids = torch.tensor(sequence.prompt_ids)
    states = state_of(token_ids, torch.arange(len(token_ids))).double()
    vector = states.mean(dim=0) if sequence.params.pooling == "mean" else states[-1]
    return [float(each) for each in vector / vector.norm()]


def run(engine: Engine, sequences: list[Sequence]) -> dict[str, StepOutput]:
    """The only output of each."""
    for sequence in sequences:
        assert engine.add(sequence) is None
    return {id: output for id, (output,) in run_to_end(engine).items()}


@POOLINGS
@pytest.mark.parametrize("sizes", [{}, {"token_budget": 3, "max_num_seqs": 2}, {"num_blocks": 8}])
def test_an_embedding_is_the_pooled_states_of_the_prompt_however_it_is_cut(pooling: str, sizes: dict[str, int]) -> None:
    sequences = [pooled(f"s{i}", num, pooling) for i, num in enumerate((1, 3, 4, 5, 17, 29))]
    outputs = run(make_engine(**sizes), sequences)
    for sequence in sequences:
        output = outputs[sequence.id]
        assert output.embedding == pytest.approx(expected(sequence), abs=1e-9)
        assert (output.token_id, output.finish_reason, output.error) == (-1, "stop", None)


@POOLINGS
@graph_world.OVERLAP
def test_embeddings_and_tokens_come_from_the_same_steps_of_a_device(pooling: str, is_overlapping: bool) -> None:
    engine = graph_world.make_engine(is_overlapping=is_overlapping, token_budget=9)
    plain = graph_world.make_sequences()
    vectors = [pooled(f"v{i}", num, pooling, arrival=i) for i, num in enumerate((1, 8, 9, 20, 1))]
    tokens = graph_world.expected_tokens(engine, plain)
    for sequence in [each for pair in zip(plain, vectors, strict=False) for each in pair] + plain[5:]:
        engine.add(sequence)
    outputs = run_to_end(engine)
    engine.close()
    for sequence in vectors:
        [output] = outputs[sequence.id]
        assert output.embedding == pytest.approx(expected(sequence), abs=1e-9)
    assert {each.id: [output.token_id for output in outputs[each.id]] for each in plain} == tokens


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_embeddings_beside_tokens_change_neither(is_overlapping: bool) -> None:
    engine = make_engine(is_overlapping=is_overlapping, token_budget=8)
    writer, vector = make_sequence("w", 3, max_tokens=12), pooled("v", 25, "mean")
    samples = expected_samples(writer, engine.config)
    engine.add(writer)
    engine.step()
    engine.add(vector)
    outputs = run_to_end(engine)
    engine.close()
    assert [each.token_id for each in outputs["w"]] == [each.token_id for each in samples][-len(outputs["w"]) :]
    assert outputs["v"][0].embedding == pytest.approx(expected(vector), abs=1e-9)


@pytest.mark.parametrize(("pooling", "num_cached"), [("mean", 0), ("last", 16)])
def test_a_cached_prefix_is_used_only_where_its_states_do_not_count(pooling: str, num_cached: int) -> None:
    engine = make_engine()
    run(engine, [pooled("first", range(1, 20), pooling)])
    output = run(engine, [again := pooled("again", range(1, 20), pooling)])["again"]
    assert output.num_cached_tokens == num_cached
    assert output.embedding == pytest.approx(expected(again), abs=1e-9)


def test_a_preempted_prompt_is_pooled_anew() -> None:
    clock = Clock()
    engine = make_engine(clock=clock, token_budget=4, max_num_seqs=1)
    low = pooled("low", 20, "mean", tier=2)
    engine.add(low)
    engine.step()
    assert low.pooled
    engine.add(make_sequence("high", 3, tier=0, max_tokens=2))
    outputs = run_to_end(engine)
    assert low.num_preemptions == 1
    assert outputs["low"][0].embedding == pytest.approx(expected(low), abs=1e-9)


def test_a_prompt_may_be_as_long_as_the_model_takes_since_nothing_follows() -> None:
    engine = make_engine(max_model_len=12)
    assert run(engine, [pooled("v", 12, "mean")])["v"].embedding is not None
    with pytest.raises(PromptTooLong):
        engine.add(pooled("long", 13, "mean"))
    with pytest.raises(PromptTooLong):
        engine.add(make_sequence("w", 12))


def test_states_that_are_not_finite_fail_their_sequence_alone() -> None:
    engine = make_engine(model=FakeModel(nan_tokens={7}))
    outputs = run(engine, [pooled("bad", [5, 7, 9], "mean"), good := pooled("good", [5, 8, 9], "mean")])
    assert outputs["bad"].error is not None and outputs["bad"].embedding is None
    assert outputs["good"].embedding == pytest.approx(expected(good), abs=1e-9)


def test_an_aborted_prompt_gives_nothing() -> None:
    engine = make_engine(token_budget=8)
    engine.add(pooled("v", 10, "mean"))
    engine.step()
    engine.abort("v")
    assert run_to_end(engine) == {}


def _models(directory: Path) -> Iterator[tuple[Model, torch.dtype]]:
    path = make_checkpoint(directory / "model", "llama", head_dim=32)
    yield load_model(path, cache_dir=directory / "cache", dtype=torch.float32, device="cpu"), torch.float32
    if library() is not None:
        yield load_recorded(path), torch.bfloat16


@POOLINGS
def test_a_model_pools_what_transformers_does(pooling: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    token_ids = torch.randint(3, 512, (90,), generator=torch.Generator().manual_seed(5)).tolist()
    for model, dtype in _models(tmp_path):
        reference = AutoModel.from_pretrained(tmp_path / "model", dtype=torch.float32)
        with torch.inference_mode():
            states = reference(torch.tensor([token_ids])).last_hidden_state[0]
        vector = torch.nn.functional.normalize(states.mean(0) if pooling == "mean" else states[-1], dim=0)
        sizes = {"block_size": 16, "num_blocks": 50, "max_model_len": 256, "token_budget": 40, "vocab_size": 1000}
        engine = build_engine(make_config(**sizes), model, device="cpu", dtype=dtype, clock=Clock())
        found = torch.tensor(run(engine, [pooled("v", token_ids, pooling)])["v"].embedding)
        assert float(found @ vector) > (1 - 1e-6 if dtype == torch.float32 else 0.999)
