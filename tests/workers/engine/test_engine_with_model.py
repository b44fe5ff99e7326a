"""The engine around real models: attention through block tables gives the same tokens however the work is cut."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.checkpoints import make_checkpoint
from tests.workers.engine.fakes import Clock, know_steps_to_be_slow, make_config, make_sequence, run_to_end
from tests.workers.engine.known_disk_tier import KnownDiskTier
from workers.engine import build
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.outputs import StepOutput
from workers.engine.runner import Model
from workers.engine.sequence import Sequence
from workers.models.loader import load_model

NUM_OUTPUT_TOKENS = 30


@pytest.fixture(scope="module", params=["llama", "gemma3", "mixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("model")
    path = make_checkpoint(directory / request.param, request.param)
    return load_model(path, cache_dir=directory / "cache", dtype=torch.float32, device="cpu")


def make_world(model: Model, **overrides: object) -> Engine:
    sizes = {"block_size": 16, "num_blocks": 200, "max_model_len": 256, "token_budget": 64, "vocab_size": 1000}
    config = make_config(**(sizes | overrides))
    return build_engine(config, model, device="cpu", dtype=torch.float32, clock=Clock())


def make_sequences(prefixes: dict[str, list[int]] | None = None) -> list[Sequence]:
    """Greedy and seeded sequences in turn, their prompts on both sides of one block and of one chunk."""
    rng = random.Random(0)
    return [
        make_sequence(
            f"s{i}",
            [rng.randrange(3, 300) for _ in range(num_tokens)],
            output_ids=prefixes[f"s{i}"] if prefixes else (),
            arrival=i,
            max_tokens=NUM_OUTPUT_TOKENS,
            temperature=(i % 2) * 0.8,
            top_p=0.9,
            seed=i,
            logprobs=1,
        )
        for i, num_tokens in enumerate((1, 15, 16, 17, 63, 90))
    ]


def run(engine: Engine, sequences: list[Sequence]) -> dict[str, list[StepOutput]]:
    for sequence in sequences:
        engine.add(sequence)
    return run_to_end(engine)


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[str, list[StepOutput]]:
    outputs: dict[str, list[StepOutput]] = {}
    for sequence in make_sequences():
        outputs |= run(make_world(model), [sequence])
    return outputs


def test_batched_outputs_and_logprobs_are_those_of_each_sequence_alone(
    model: Model, alone: dict[str, list[StepOutput]]
) -> None:
    assert run(make_world(model), make_sequences()) == alone


@pytest.mark.parametrize("token_budget", [8, 17])
def test_chunked_outputs_and_logprobs_are_the_same(
    model: Model, alone: dict[str, list[StepOutput]], token_budget: int
) -> None:
    assert run(make_world(model, token_budget=token_budget), make_sequences()) == alone


def test_preempted_outputs_and_logprobs_are_the_same(model: Model, alone: dict[str, list[StepOutput]]) -> None:
    sequences = make_sequences()
    assert run(make_world(model, num_blocks=16), sequences) == alone
    assert any(sequence.num_preemptions for sequence in sequences)


def test_resumed_outputs_and_logprobs_are_the_same(model: Model, alone: dict[str, list[StepOutput]]) -> None:
    prefixes = {id: [output.token_id for output in outputs[:13]] for id, outputs in alone.items()}
    resumed = run(make_world(model), make_sequences(prefixes))
    assert resumed == {id: outputs[13:] for id, outputs in alone.items()}


def without_counts(outputs: dict[str, list[StepOutput]]) -> dict[str, list[StepOutput]]:
    """All that a client sees but how much of its prompt was found in the cache."""
    return {id: [replace(output, num_cached_tokens=0) for output in each] for id, each in outputs.items()}


@pytest.mark.parametrize("policy", ["aging", "fcfs", "shortest_first"])
@pytest.mark.parametrize("is_overlapping", [False, True])
def test_overlapped_outputs_and_logprobs_are_the_same_under_every_policy(
    model: Model, alone: dict[str, list[StepOutput]], policy: str, is_overlapping: bool
) -> None:
    engine = make_world(model, policy=policy, is_overlapping=is_overlapping, max_num_seqs=4, token_budget=24)
    assert without_counts(run(engine, make_sequences())) == alone
    engine.close()


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_outputs_are_the_same_with_a_warm_cache(
    model: Model, alone: dict[str, list[StepOutput]], is_overlapping: bool
) -> None:
    engine = make_world(model, is_overlapping=is_overlapping)
    run(engine, make_sequences())
    warm = run(engine, make_sequences())
    assert without_counts(warm) == alone
    assert {id: outputs[0].num_cached_tokens for id, outputs in warm.items()} == {
        "s0": 0, "s1": 0, "s2": 0, "s3": 16, "s4": 48, "s5": 80,
    }  # fmt: skip
    engine.close()


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_outputs_are_the_same_when_blocks_are_swapped_to_the_host(
    model: Model, alone: dict[str, list[StepOutput]], is_overlapping: bool
) -> None:
    engine = make_world(model, num_blocks=10, host_blocks=100, is_overlapping=is_overlapping)
    know_steps_to_be_slow(engine)
    assert without_counts(run(engine, make_sequences())) == alone
    assert engine.stats().preemptions_swap > 0 and engine.stats().swapped_in_bytes > 0
    engine.close()


def test_outputs_are_the_same_from_blocks_that_an_engine_before_left_on_disk(
    model: Model, alone: dict[str, list[StepOutput]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DiskTier", KnownDiskTier)
    tiers = {"num_blocks": 10, "host_blocks": 8, "disk_path": tmp_path, "disk_bytes": 2**26}
    first = make_world(model, **tiers)
    for _ in range(2):
        assert without_counts(run(first, make_sequences())) == alone
    first.close()
    second = make_world(model, **tiers)
    assert without_counts(run(second, make_sequences())) == alone
    assert second.stats().disk_hit_tokens > 0
    second.close()


def test_choices_of_a_group_are_those_of_plain_sequences_with_their_seeds(model: Model) -> None:
    prompt = [5 + i % 90 for i in range(37)]
    options = {"max_tokens": 20, "temperature": 0.9, "logprobs": 2}
    plain = [make_sequence(f"c{i}", prompt, seed=choice_seed(3, i), **options) for i in range(3)]
    expected = {i: run(make_world(model), [sequence])[f"c{i}"] for i, sequence in enumerate(plain)}
    choices = [make_sequence(f"g/{i}", prompt, seed=choice_seed(3, i), **options) for i in range(3)]
    for i, sequence in enumerate(choices):
        sequence.choice = i
    engine = make_world(model, token_budget=16)
    engine.add_group(SequenceGroup("g", choices))
    outputs = run_to_end(engine)["g"]
    for i in range(3):
        mine = [replace(output, sequence_id=f"c{i}", choice=0) for output in outputs if output.choice == i]
        assert mine == expected[i]
