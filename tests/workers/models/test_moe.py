"""Checkpoints with experts, in each spelling that there is of their weights and their number."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from kernels.cpu.library import library
from tests.checkpoints import make_checkpoint, write_json
from tests.workers.models.paged import PagedModel, load, load_recorded
from workers.models.config import read_config
from workers.models.errors import BadCheckpoint
from workers.models.loader import load_model

PER_EXPERT = {
    "mixtral": "model.layers.1.block_sparse_moe.experts.5.w2.weight",
    "qwen3_moe": "model.layers.1.mlp.experts.7.down_proj.weight",
}
TOKEN_IDS = list(range(3, 80))
kernels_built = pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
STACKED = "model.layers.1.mlp.experts.down_proj"


def logits_of(path: Path) -> torch.Tensor:
    (logits,) = PagedModel(load(path)).step({0: TOKEN_IDS})
    return logits


@pytest.mark.parametrize("architecture", PER_EXPERT)
@pytest.mark.parametrize("is_stacked", [False, True], ids=["per expert", "stacked"])
def test_what_transformers_saves_is_the_same_model(tmp_path: Path, architecture: str, is_stacked: bool) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", architecture)
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "saved", save_original_format=not is_stacked)
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    assert (STACKED in names, PER_EXPERT[architecture] in names) == (is_stacked, not is_stacked)
    assert torch.equal(logits_of(tmp_path / "saved"), logits_of(checkpoint))


@pytest.mark.parametrize("architecture", PER_EXPERT)
def test_expert_that_is_missing_or_too_many_is_refused_by_name(tmp_path: Path, architecture: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", architecture)
    weights, last = load_file(checkpoint / "model.safetensors"), PER_EXPERT[architecture]
    save_file(weights | {last.replace(".experts.", ".experts.1"): weights[last]}, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match="1 tensors that this architecture does not use"):
        load(checkpoint)
    del weights[last]
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=f"no tensor {last}"):
        load(checkpoint)


@kernels_built
@pytest.mark.parametrize("architecture", PER_EXPERT)
def test_experts_packed_for_the_cpu_are_the_same_in_either_spelling(tmp_path: Path, architecture: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", architecture, head_dim=32)
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "saved", save_original_format=False)
    assert STACKED in load_file(tmp_path / "saved" / "model.safetensors")
    (each,) = PagedModel(load_recorded(checkpoint)).step({0: TOKEN_IDS})
    (stacked,) = PagedModel(load_recorded(tmp_path / "saved")).step({0: TOKEN_IDS})
    assert torch.equal(stacked, each)


@kernels_built
@pytest.mark.parametrize("architecture", PER_EXPERT)
@pytest.mark.parametrize(("packing", "form"), [("int8", "int8"), ("int4", "int4")])
def test_the_setting_quantizes_experts_and_not_their_router(
    tmp_path: Path, architecture: str, packing: str, form: str
) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", architecture, head_dim=32)
    model = load_model(checkpoint, cache_dir=tmp_path, dtype=torch.bfloat16, device="cpu", packing=packing)
    feed_forward = model.layers[1].feed_forward
    assert feed_forward.router.format == "bf16"
    assert {matrix.format for matrix in feed_forward.gate_up_proj + feed_forward.down_proj} == {form}


def test_stacked_experts_of_another_number_than_the_config_says_are_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", "mixtral")
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "saved", save_original_format=False)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    write_json(tmp_path / "saved" / "config.json", config | {"num_local_experts": 5})
    with pytest.raises(BadCheckpoint, match="not of 5 experts"):
        load(tmp_path / "saved")


def test_every_layer_of_a_mixtral_has_experts_that_share_all_the_weight(tmp_path: Path) -> None:
    for experts in read_config(make_checkpoint(tmp_path / "model", "mixtral")).experts:
        assert experts is not None
        assert (experts.num_experts, experts.num_chosen, experts.is_normalized) == (6, 2, True)


def test_qwen_says_which_layers_have_experts_and_whether_they_share_all_the_weight(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(
        tmp_path / "model", "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]
    )
    experts = read_config(checkpoint).experts
    assert [each is not None for each in experts] == [False, True, False, False, False, True]
    assert experts[1] is not None
    assert experts[1].is_normalized
    config = json.loads((checkpoint / "config.json").read_text())
    for key in ("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"):
        del config[key]
    write_json(checkpoint / "config.json", config)
    for each in read_config(checkpoint).experts:
        assert each is not None
        assert not each.is_normalized
