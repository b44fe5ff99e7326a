"""Quantized matrices as a GPU's kernels take them, computed with by the reference."""

from pathlib import Path

import pytest
import torch

from kernels import Weight
from kernels.quantized import Int4Matrix, Int8Matrix
from tests.checkpoints import make_checkpoint
from tests.workers.models.gguf_files import write_gguf
from tests.workers.models.int4_files import CONFIGS, write_int4
from tests.workers.models.int8_files import write_int8
from tests.workers.models.paged import PagedModel, load
from workers.models.decoder import Decoder
from workers.models.loader import load_model
from workers.models.packings import AS_STORED

TOKEN_IDS = list(range(3, 83))


def load_quantized(path: Path, quantization: str) -> Decoder:
    return load_model(
        path, cache_dir=path.parent / "cache", dtype=torch.float32, device="cpu", quantization=quantization
    )


def plain(directory: Path, architecture: str = "llama", **overrides: int) -> Path:
    sizes = {"hidden_size": 128, "head_dim": 32} | overrides
    return make_checkpoint(directory / "plain", architecture, **sizes)


def matrices(model: Decoder) -> list[Weight]:
    """Those of attention and feed-forward in one layer."""
    layer = model.layers[1]
    return [
        layer.attention.qkv_proj,
        layer.attention.o_proj,
        layer.feed_forward.gate_up_proj,
        layer.feed_forward.down_proj,
    ]


def distance(ours: Decoder, exact: Decoder) -> float:
    """Mean squared error of the logits, over their variance."""
    [found], [expected] = (PagedModel(model).step({0: TOKEN_IDS}) for model in (ours, exact))
    return float((found - expected).square().mean() / expected.var())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_int8_rows_and_scales_stay_as_they_are_stored(architecture: str, tmp_path: Path) -> None:
    int8, floats = write_int8(plain(tmp_path, architecture), tmp_path)
    model, exact = load_quantized(int8, AS_STORED), load(floats)
    for found, expected in zip(matrices(model), matrices(exact), strict=True):
        assert isinstance(found, Int8Matrix) and isinstance(expected, torch.Tensor)
        assert torch.equal(found.rows * found.scales[:, None], expected)
    assert 0 < distance(model, exact) < 2e-3  # each row of what comes in is rounded too


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize("group_size", [32, 128])
def test_int4_quants_stay_as_they_are_stored(layout: str, group_size: int, is_symmetric: bool, tmp_path: Path) -> None:
    int4, floats = write_int4(
        plain(tmp_path, "qwen2"), tmp_path, layout, group_size=group_size, is_symmetric=is_symmetric
    )
    model = load_quantized(int4, AS_STORED)
    for found in matrices(model):
        assert isinstance(found, Int4Matrix) and (found.zeros is None) == is_symmetric
        assert found.scales.dtype == torch.float16
    assert distance(model, load(floats)) < 1e-9


@pytest.mark.parametrize(("quantization", "error"), [("int8", 3e-3), ("int4", 0.1)])
def test_floats_are_rounded_as_it_is_asked_for_but_for_the_rows_that_are_looked_up(
    quantization: str, error: float, tmp_path: Path
) -> None:
    path = plain(tmp_path, "qwen3")
    model = load_quantized(path, quantization)
    kind = {"int8": Int8Matrix, "int4": Int4Matrix}[quantization]
    assert all(isinstance(each, kind) for each in [*matrices(model), model.lm_head])
    assert isinstance(model.embed_tokens, torch.Tensor)
    assert 0 < distance(model, load(path)) < error


def test_a_stored_form_gives_way_to_the_one_that_is_asked_for(tmp_path: Path) -> None:
    int8, _ = write_int8(plain(tmp_path), tmp_path)
    assert all(isinstance(each, Int4Matrix) for each in matrices(load_quantized(int8, "int4")))


def test_gguf_files_are_rounded_too(tmp_path: Path) -> None:
    path = write_gguf(plain(tmp_path), tmp_path / "model.gguf")
    assert all(isinstance(each, Int8Matrix) for each in matrices(load_quantized(path, "int8")))


def test_columns_that_are_no_whole_groups_stay_floats(tmp_path: Path) -> None:
    model = load_quantized(plain(tmp_path, intermediate_size=80), "int4")
    *others, down = matrices(model)
    assert all(isinstance(each, Int4Matrix) for each in others) and isinstance(down, torch.Tensor)
