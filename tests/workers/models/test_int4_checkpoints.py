"""GPTQ and AWQ checkpoints against what their integers stand for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from kernels.cpu.library import library
from kernels.cpu.packed import PackedMatrix
from tests.checkpoints import make_checkpoint, write_json
from tests.workers.models.int4_files import CONFIGS, write_int4
from tests.workers.models.paged import PagedModel, load, load_recorded
from workers.models.card import read_card
from workers.models.errors import BadCheckpoint, UnsupportedModel
from workers.models.loader import load_model

TOKEN_IDS = list(range(3, 103))
has_kernels = pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")


def checkpoints(
    directory: Path, layout: str, architecture: str = "llama", *, group_size: int = 32, is_symmetric: bool = False
) -> tuple[Path, Path]:
    plain = make_checkpoint(directory / "plain", architecture, hidden_size=128, head_dim=32)
    return write_int4(plain, directory, layout, group_size=group_size, is_symmetric=is_symmetric)


def logits_of(path: Path) -> torch.Tensor:
    [logits] = PagedModel(load(path)).step({0: TOKEN_IDS})
    return logits


def edit(checkpoint: Path, part: str, tensor: np.ndarray | None) -> None:
    """Another `part` of one linear layer, or none."""
    weights = load_file(checkpoint / "model.safetensors")
    weights.pop(f"model.layers.0.mlp.up_proj.{part}")
    if tensor is not None:
        weights[f"model.layers.0.mlp.up_proj.{part}"] = tensor
    save_file(weights, checkpoint / "model.safetensors")


@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_weights_are_to_the_bit_what_the_integers_stand_for(layout: str, group_size: int, tmp_path: Path) -> None:
    int4, floats = checkpoints(tmp_path, layout, group_size=group_size)
    assert torch.equal(logits_of(int4), logits_of(floats))


@has_kernels
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("layout", CONFIGS)
@pytest.mark.parametrize(("is_symmetric", "form"), [(True, "q4"), (False, "q4_zero")])
def test_kernels_take_the_integers_as_they_are(
    layout: str, architecture: str, is_symmetric: bool, form: str, tmp_path: Path
) -> None:
    int4, floats = checkpoints(tmp_path, layout, architecture, group_size=64, is_symmetric=is_symmetric)
    model = load_model(int4, cache_dir=tmp_path / "cache", dtype=torch.bfloat16, device="cpu", packing="bf16")
    for weight in (model.layers[0].attention.qkv_proj, model.layers[1].feed_forward.gate_up_proj):
        assert isinstance(weight, PackedMatrix) and weight.format == form
    [ours] = PagedModel(load_recorded(int4)).step({0: TOKEN_IDS})
    exact = logits_of(floats)
    assert (ours - exact).square().mean() < 2e-3 * exact.var()


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("gptq", {"bits": 8}, "bits = 8; supported is 4"),
        ("gptq", {"desc_act": True}, "desc_act = True; supported is False"),
        ("gptq", {"group_size": -1}, "groups of -1 in quantization_config; supported are 32, 64, 128"),
        ("gptq", {"checkpoint_format": "marlin"}, "in the layout marlin; supported: gptq, gptq_v2"),
        ("awq", {"bits": 3}, "bits = 3; supported is 4"),
        ("awq", {"version": "GEMV"}, "in the layout gemv; supported: gemm"),
    ],
)
def test_other_forms_are_refused_by_name(layout: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    config = json.loads((checkpoint / "config.json").read_text())
    quantization = CONFIGS[layout] | {"group_size": 128} | changes
    write_json(checkpoint / "config.json", config | {"quantization_config": quantization})
    with pytest.raises(UnsupportedModel, match=message):
        read_card(checkpoint, cache_dir=tmp_path)


def test_columns_that_are_grouped_out_of_order_are_refused(tmp_path: Path) -> None:
    int4, _ = checkpoints(tmp_path, "gptq")
    edit(int4, "g_idx", np.array([column % 4 for column in range(128)], np.int32))
    with pytest.raises(
        UnsupportedModel, match=r"do not lie together in model\.layers\.0\.mlp\.up_proj\.weight \(desc_act"
    ):
        load(int4)


def test_missing_part_is_refused_by_name(tmp_path: Path) -> None:
    int4, _ = checkpoints(tmp_path, "awq")
    edit(int4, "qzeros", None)
    with pytest.raises(BadCheckpoint, match=r"no tensor qzeros of model\.layers\.0\.mlp\.up_proj\.weight"):
        load(int4)


def test_bias_of_zeros_beside_a_quantized_weight_is_none_and_another_is_refused(tmp_path: Path) -> None:
    int4, _ = checkpoints(tmp_path, "gptq")
    load(int4)
    edit(int4, "bias", np.ones(128, np.float16))
    with pytest.raises(BadCheckpoint, match=r"does not use, such as model\.layers\.0\.mlp\.up_proj\.bias"):
        load(int4)
