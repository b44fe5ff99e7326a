"""A recorded program computes what the model's own forward pass does, and each row to the bit alone."""

from pathlib import Path

import pytest
import torch

from kernels.cpu.library import library
from tests.checkpoints import make_checkpoint
from tests.workers.models.cases import CASES
from tests.workers.models.paged import PagedModel, load, load_recorded
from workers.models.recorded import RecordedModel, can_be_recorded

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
TOKEN_IDS = torch.randint(3, 512, (150,), generator=torch.Generator().manual_seed(5)).tolist()
BFLOAT16 = torch.bfloat16


def checkpoint(directory: Path, name: str) -> Path:
    return make_checkpoint(directory, name.split(",")[0], **CASES[name] | {"head_dim": 32})


def paged(model: RecordedModel, *, num_seqs: int = 1, kv_dtype: torch.dtype = BFLOAT16) -> PagedModel:
    return PagedModel(model, num_seqs=num_seqs, kv_dtype=kv_dtype)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("recorded") / "model", "llama")


@pytest.mark.parametrize("name", CASES)
def test_logits_are_as_near_the_exact_ones_as_those_of_pytorch(name: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", name)
    [exact] = PagedModel(load(path)).step({0: TOKEN_IDS})
    [plain] = PagedModel(load(path, BFLOAT16)).step({0: TOKEN_IDS})
    [ours] = paged(load_recorded(path)).step({0: TOKEN_IDS})
    errors = torch.stack([(found - exact).square().mean(1) for found in (ours, plain)])
    if not any(load(path).config.experts):
        assert errors[0].mean() < 1.2 * errors[1].mean()
    else:  # where two experts are nearly as likely, a token may get the other: such a row tells nothing
        assert errors[0].median() < 1.2 * errors[1].median()


@pytest.mark.parametrize("name", [name for name in CASES if "mixtral" not in name and "moe" not in name])
def test_an_int8_cache_costs_less_than_bfloat16_does_elsewhere(name: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", name)
    [exact] = PagedModel(load(path)).step({0: TOKEN_IDS})
    [reference] = PagedModel(load(path), kv_dtype=torch.int8).step({0: TOKEN_IDS})
    [plain] = PagedModel(load(path, BFLOAT16)).step({0: TOKEN_IDS})
    [ours] = paged(load_recorded(path), kv_dtype=torch.int8).step({0: TOKEN_IDS})
    rounding, quantizing = ((logits - exact).square().mean() for logits in (plain, reference))
    assert 0 < quantizing < rounding
    assert (ours - exact).square().mean() < 1.2 * (rounding + quantizing)


@pytest.mark.parametrize("kv_dtype", [BFLOAT16, torch.int8], ids=str)
@pytest.mark.parametrize(
    "name", ["llama", "mistral, sliding window", "gemma3", "qwen3", "mixtral, sliding window", "qwen3_moe"]
)
def test_bits_do_not_depend_on_chunks_neighbours_or_threads(name: str, kv_dtype: torch.dtype, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", name)
    [whole] = [logits.clone() for logits in paged(load_recorded(path), kv_dtype=kv_dtype).step({0: TOKEN_IDS})]
    model = paged(load_recorded(path, num_threads=2), num_seqs=3, kv_dtype=kv_dtype)
    rows, start = [], 0
    for end in (1, 2, 17, 49, 50, 113, 150):
        runs = {2: TOKEN_IDS[5 : 5 + 40 // end], 1: TOKEN_IDS[start:end], 0: TOKEN_IDS[9:12]}
        rows.append(model.step({seq: run for seq, run in runs.items() if run})[1 if runs[2] else 0].clone())
        start = end
    assert torch.equal(torch.cat(rows), whole)


def test_what_another_set_of_kernels_must_compute_is_left_to_pytorch(llama: Path, tmp_path: Path) -> None:
    config = load(llama).config
    assert can_be_recorded(config, BFLOAT16, "cpu")
    assert not can_be_recorded(config, torch.float32, "cpu")
    assert not can_be_recorded(config, BFLOAT16, "cuda")
    assert not can_be_recorded(load(make_checkpoint(tmp_path / "narrow")).config, BFLOAT16, "cpu")


def test_weights_are_packed_once_and_anew_when_the_checkpoint_changes(llama: Path) -> None:
    load_recorded(llama)
    [first] = (llama.parent / "cache" / "packed").glob("*-bf16")
    before = first.stat().st_mtime_ns
    load_recorded(llama)
    assert first.stat().st_mtime_ns == before
    (llama / "model.safetensors").touch()
    load_recorded(llama)
    [second] = (llama.parent / "cache" / "packed").glob("*-bf16")
    assert second != first
