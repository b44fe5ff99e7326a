"""The engine as it runs on a GPU, its kernels interpreted: models, sampling and copies of blocks, slots and graphs."""

from pathlib import Path

import pytest
import torch

from kernels import operations, sampling
from tests.checkpoints import make_checkpoint
from tests.workers.engine.fakes import Clock, make_config, make_sequence, run_to_end
from tests.workers.engine.host_accelerator import HostAccelerator
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.mover import Mover
from workers.engine.moves import Moves
from workers.engine.sequence import Sequence
from workers.models.decoder import Decoder
from workers.models.loader import load_model

MODELS = {"llama": "bf16", "gemma3": "int8", "qwen3": "int4"}  # and how their weights are held


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    path = make_checkpoint(tmp_path / "model", request.param, hidden_size=64, intermediate_size=96, vocab_size=300)
    cache = tmp_path / "cache"
    return load_model(path, cache_dir=cache, dtype=torch.float32, device="cpu", quantization=MODELS[request.param])


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operations, sampling):
        monkeypatch.setattr(module, "_is_on_gpu", lambda x: True)


def make_engine(model: Decoder, accelerator: HostAccelerator | None) -> Engine:
    config = make_config(
        block_size=32, num_blocks=20, max_model_len=96, token_budget=24, max_num_seqs=3, vocab_size=300,
        is_overlapping=accelerator is not None,
    )  # fmt: skip
    return build_engine(config, model, device="cpu", dtype=torch.float32, accelerator=accelerator, clock=Clock())


def make_sequences() -> list[Sequence]:
    kinds = ({}, {"temperature": 0.7}, {"temperature": 0.9, "top_p": 0.8, "top_k": 30})
    return [
        make_sequence(f"s{i}", [3 + (7 * i + j) % 290 for j in range(num)], max_tokens=5, seed=i, **kinds[i % 3])
        for i, num in enumerate((1, 31, 33, 12))
    ]


def tokens(engine: Engine) -> dict[str, list[int]]:
    for sequence in make_sequences():
        engine.add(sequence)
    choices = [
        make_sequence(f"g/{i}", range(5, 15), seed=choice_seed(1, i), temperature=1.0, max_tokens=4) for i in range(2)
    ]
    for i, choice in enumerate(choices):
        choice.choice = i
    engine.add_group(SequenceGroup("g", choices))
    outputs = run_to_end(engine)
    engine.close()
    assert not any(output.error for each in outputs.values() for output in each)
    return {id: [each.token_id for each in sorted(found, key=lambda o: o.choice)] for id, found in outputs.items()}


@pytest.mark.timeout(400)
def test_tokens_are_those_of_the_reference(model: Decoder, request: pytest.FixtureRequest) -> None:
    expected = tokens(make_engine(model, None))
    request.getfixturevalue("on_gpu")
    engine = make_engine(model, HostAccelerator())
    assert tokens(engine) == expected
    assert engine.moves.copied_bytes > 0  # the choices' partial block


def test_blocks_are_copied_as_if_one_after_the_other(on_gpu: None) -> None:
    kv_cache = torch.randn(6, 3, 2, 4, 2, 5)
    before = kv_cache.clone()
    Mover(kv_cache).run(Moves(copies=[(3, 0), (3, 1), (4, 3)]))
    assert torch.equal(kv_cache[[0, 1, 3]], before[[3, 3, 4]])
    assert torch.equal(kv_cache[[2, 4, 5]], before[[2, 4, 5]])
