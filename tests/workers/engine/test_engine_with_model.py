"""The engine around real models: attention through block tables gives the same tokens however the work is cut."""

import random

import pytest
import torch

from tests.checkpoints import make_checkpoint
from tests.workers.engine.fakes import Clock, make_config, make_sequence, run_to_end
from workers.engine.engine import Engine
from workers.engine.outputs import StepOutput
from workers.engine.runner import Model, ModelRunner
from workers.engine.sequence import Sequence
from workers.models.loader import load_model

NUM_OUTPUT_TOKENS = 30


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("model")
    path = make_checkpoint(directory / request.param, request.param)
    return load_model(path, cache_dir=directory / "cache", dtype=torch.float32, device="cpu")


def make_world(model: Model, **overrides: object) -> Engine:
    sizes = {"block_size": 16, "num_blocks": 200, "max_model_len": 256, "token_budget": 64, "vocab_size": 1000}
    config = make_config(**(sizes | overrides))
    return Engine(config, ModelRunner(model, config, "cpu", torch.float32), clock=Clock())


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
