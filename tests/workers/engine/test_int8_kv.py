"""The engine over an int8 KV cache: the same tokens however the work is cut and wherever blocks have been."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.cpu.library import library
from tests.checkpoints import make_checkpoint
from tests.workers.engine.fakes import Clock, know_steps_to_be_slow, make_config, make_sequence, run_to_end, tokens_of
from tests.workers.engine.test_engine_with_model import KnownDiskTier
from tests.workers.models.paged import load, load_recorded
from workers.engine import build
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.runner import Model
from workers.models.recorded import RecordedModel

LENGTHS = (1, 15, 17, 33, 63, 90)  # on both sides of a block and of a chunk
PROMPTS = {f"s{i}": [5 + (7 * i + j * j) % 300 for j in range(length)] for i, length in enumerate(LENGTHS)}
MAKERS = [
    pytest.param(load, id="reference"),
    pytest.param(load_recorded, id="kernels", marks=pytest.mark.skipif(library() is None, reason="not built")),
]


@pytest.fixture(scope="module", params=MAKERS)
def make_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Model]:
    path = make_checkpoint(tmp_path_factory.mktemp("model") / "llama", "llama", head_dim=32)
    return lambda: request.param(path)  # a program is recorded for one cache


def make_engine(model: Model, *, kv_dtype: torch.dtype = torch.int8, **overrides: object) -> Engine:
    sizes = {"block_size": 16, "num_blocks": 100, "max_model_len": 256, "token_budget": 64, "vocab_size": 1000}
    config = make_config(**(sizes | overrides))
    return build_engine(config, model, device="cpu", dtype=kv_dtype, clock=Clock())


def run(engine: Engine, prompts: dict[str, list[int]] = PROMPTS) -> dict[str, list[int]]:
    """Greedy tokens of each."""
    for arrival, (id, prompt) in enumerate(prompts.items()):
        engine.add(make_sequence(id, prompt, max_tokens=30, arrival=arrival))
    return tokens_of(run_to_end(engine))


@pytest.fixture(scope="module")
def alone(make_model: Callable[[], Model]) -> dict[str, list[int]]:
    model = make_model()
    engine = make_engine(model, token_budget=256, is_caching=False)
    return {id: run(engine, {id: prompt})[id] for id, prompt in PROMPTS.items()}


@pytest.mark.parametrize("token_budget", [8, 17, 256])
def test_tokens_are_the_same_in_a_batch_and_in_chunks(
    make_model: Callable[[], Model], alone: dict[str, list[int]], token_budget: int
) -> None:
    assert run(make_engine(make_model(), token_budget=token_budget)) == alone


def test_tokens_are_the_same_after_a_preemption(make_model: Callable[[], Model], alone: dict[str, list[int]]) -> None:
    engine = make_engine(make_model(), num_blocks=16)
    assert run(engine) == alone
    assert engine.stats().preemptions_recompute > 0


def test_tokens_are_the_same_when_blocks_are_swapped_to_the_host(
    make_model: Callable[[], Model], alone: dict[str, list[int]]
) -> None:
    engine = make_engine(make_model(), num_blocks=10, host_blocks=100)
    know_steps_to_be_slow(engine)
    assert run(engine) == alone
    assert engine.stats().swapped_in_bytes > 0


def test_tokens_are_the_same_from_blocks_on_disk_which_no_other_dtype_finds(
    make_model: Callable[[], Model], alone: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "DiskTier", KnownDiskTier)
    tiers = {"num_blocks": 10, "host_blocks": 8, "disk_path": tmp_path, "disk_bytes": 2**26}
    first = make_engine(make_model(), **tiers)
    for _ in range(2):
        assert run(first) == alone
    first.close()
    second = make_engine(make_model(), **tiers)
    assert run(second) == alone
    second.close()
    assert second.stats().disk_hit_tokens > 0
    model = make_model()
    other_dtype = torch.bfloat16 if isinstance(model, RecordedModel) else torch.float32
    third = make_engine(model, kv_dtype=other_dtype, **tiers)
    run(third)
    third.close()
    assert third.stats().disk_hit_tokens == 0
