"""GGUF files against the checkpoints they were written from."""

import json
import os
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tests.checkpoints import CORPUS, END_OF_TEXT, TURN_END, make_checkpoint, write_json
from tests.workers.models.gguf_files import write_gguf
from tests.workers.models.paged import PagedModel, load
from workers.models.card import read_card
from workers.models.errors import BadCheckpoint, UnsupportedModel
from workers.models.loader import load_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0
TOKEN_IDS = list(range(3, 103))
WHOLE_BLOCKS = {"moe_intermediate_size": 64}
GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "query_pre_attn_scalar": 16,
}


def logits_of(path: Path) -> torch.Tensor:
    (logits,) = PagedModel(load(path)).step({0: TOKEN_IDS})
    return logits


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3"])
def test_file_in_fp32_gives_the_bits_of_its_checkpoint(architecture: str, tmp_path: Path) -> None:
    overrides = GEMMA3 if architecture == "gemma3" else {}
    checkpoint = make_checkpoint(tmp_path / "model", architecture, **overrides)
    path = write_gguf(checkpoint, tmp_path / "model.gguf")
    assert torch.equal(logits_of(path), logits_of(checkpoint))


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "qwen3_moe"])
def test_quantized_file_gives_the_bits_of_its_dequantized_weights(architecture: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", architecture, **WHOLE_BLOCKS)
    path = write_gguf(checkpoint, tmp_path / "model.gguf", quantization=Q8_0)
    weights = load_file(checkpoint / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2 and not re.search(r"(mlp|block_sparse_moe)\.gate\.", name):
            weights[name] = gguf.dequantize(gguf.quantize(weight, Q8_0), Q8_0)
    before = logits_of(checkpoint)
    save_file(weights, checkpoint / "model.safetensors")
    assert torch.equal(logits_of(path), logits_of(checkpoint))
    assert not torch.equal(logits_of(path), before)


def test_frequency_factors_are_llama3_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    checkpoint = make_checkpoint(tmp_path / "model", rope_scaling=scaling)
    (rope, _) = read_card(checkpoint, cache_dir=tmp_path).config.ropes
    base = type(rope)(theta=rope.theta).inv_freq(16)
    path = write_gguf(checkpoint, tmp_path / "model.gguf", rope_factors=(base / rope.inv_freq(16)).numpy())
    assert (logits_of(path) - logits_of(checkpoint)).abs().max() < 1e-4


def test_yarn_scaling_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    checkpoint = make_checkpoint(tmp_path / "model", "qwen2", rope_scaling=scaling)
    path = write_gguf(checkpoint, tmp_path / "model.gguf")
    assert torch.equal(logits_of(path), logits_of(checkpoint))


def test_file_may_say_that_the_weights_of_chosen_experts_stay_as_they_are(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", "qwen3_moe", norm_topk_prob=False)
    assert torch.equal(logits_of(write_gguf(checkpoint, tmp_path / "model.gguf")), logits_of(checkpoint))


@pytest.mark.parametrize(
    ("architecture", "overrides", "named"),
    [
        ("qwen3_moe", {"routed_scaling_factor": 2.5}, "architecture qwen3moe, their weights scaled by 2.5"),
        ("qwen2", {"num_experts": 8, "num_experts_per_tok": 2}, "architecture qwen2, "),
    ],
)
def test_other_experts_than_those_of_a_mixtral_or_a_qwen3_are_refused(
    architecture: str, overrides: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = write_gguf(make_checkpoint(tmp_path / "model", architecture, **overrides), tmp_path / "model.gguf")
    with pytest.raises(UnsupportedModel, match=rf"experts in a GGUF file \({named}"):
        read_card(path, cache_dir=tmp_path / "cache")


def test_file_with_fewer_experts_than_it_says_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", "qwen3_moe")
    config = json.loads((checkpoint / "config.json").read_text())
    write_json(checkpoint / "config.json", config | {"num_experts": 9})
    with pytest.raises(BadCheckpoint, match=r"no tensor model.layers.0.mlp.experts.8.gate_proj.weight"):
        load(write_gguf(checkpoint, tmp_path / "model.gguf"))


def test_card_has_the_tokenizer_and_the_special_tokens(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    card = read_card(write_gguf(checkpoint, tmp_path / "model.gguf"), cache_dir=tmp_path / "cache")
    rebuilt, original = (
        Tokenizer.from_file(str(card.tokenizer_path)),
        Tokenizer.from_file(str(checkpoint / "tokenizer.json")),
    )
    assert rebuilt.encode(CORPUS).ids == original.encode(CORPUS).ids
    assert (card.bos_token, card.eos_token, card.chat_template) == (END_OF_TEXT, END_OF_TEXT, None)
    assert card.eos_token_ids == (0, original.token_to_id(TURN_END))


def test_conversion_is_made_once_and_again_for_a_changed_file(tmp_path: Path) -> None:
    path, cache_dir = write_gguf(make_checkpoint(tmp_path / "model"), tmp_path / "model.gguf"), tmp_path / "cache"
    first = read_card(path, cache_dir=cache_dir).tokenizer_path
    load_model(path, cache_dir=cache_dir, dtype=torch.float32, device="cpu")
    written = {file: file.stat().st_mtime_ns for file in cache_dir.rglob("*.safetensors")}
    load_model(path, cache_dir=cache_dir, dtype=torch.float32, device="cpu")
    assert written == {file: file.stat().st_mtime_ns for file in cache_dir.rglob("*.safetensors")}
    assert len(written) == 1

    write_gguf(make_checkpoint(tmp_path / "other", seed=1), path)
    os.utime(path, ns=(1, 1))
    assert read_card(path, cache_dir=cache_dir).tokenizer_path != first


def test_half_written_conversion_is_made_anew(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    path, cache_dir = write_gguf(checkpoint, tmp_path / "model.gguf"), tmp_path / "cache"
    directory = read_card(path, cache_dir=cache_dir).tokenizer_path.parent
    killed = directory / "weights-float32.partial"
    killed.mkdir()
    (killed / "00000.safetensors").write_bytes(b"half")
    model = load_model(path, cache_dir=cache_dir, dtype=torch.float32, device="cpu")
    assert np.array_equal(
        model.embed_tokens.numpy(), load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    )
    assert not killed.exists()


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    path = write_gguf(checkpoint, tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"))
    with pytest.raises(UnsupportedModel, match="GGUF architecture mamba; supported are llama"):
        read_card(path, cache_dir=tmp_path / "cache")
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "llama"
