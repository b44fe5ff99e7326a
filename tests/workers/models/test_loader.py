"""From a path to a card and a model, and what is refused on the way."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.checkpoints import CHAT_TEMPLATE, END_OF_TEXT, make_checkpoint, write_json
from tests.workers.models.paged import PagedModel, load
from workers.models.card import read_card
from workers.models.errors import BadCheckpoint, ModelNotFound, UnsupportedModel
from workers.models.loader import load_model
from workers.models.location import resolve


def edit_config(checkpoint: Path, **changes: Any) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    write_json(checkpoint / "config.json", config | changes)


def test_card_tells_the_texts_around_the_model(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    write_json(checkpoint / "generation_config.json", {"eos_token_id": [2, 1]})
    card = read_card(checkpoint, cache_dir=tmp_path)
    assert card.tokenizer_path == checkpoint / "tokenizer.json"
    assert (card.chat_template, card.bos_token, card.eos_token) == (CHAT_TEMPLATE, END_OF_TEXT, END_OF_TEXT)
    assert card.eos_token_ids == (2, 1, 0)
    assert (card.config.num_layers, card.config.num_kv_heads, card.config.head_dim) == (2, 2, 16)


def test_chat_template_may_be_a_file_or_one_of_several(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write_json(checkpoint / "tokenizer_config.json", {"chat_template": templates})
    assert read_card(checkpoint, cache_dir=tmp_path).chat_template == "plain"
    (checkpoint / "chat_template.jinja").write_text("from the file")
    assert read_card(checkpoint, cache_dir=tmp_path).chat_template == "from the file"


def test_special_tokens_may_be_spelled_as_objects(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    write_json(checkpoint / "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": None})
    card = read_card(checkpoint, cache_dir=tmp_path)
    assert (card.bos_token, card.eos_token) == ("<s>", None)


def test_paths_are_resolved_and_wrong_ones_named(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    (tmp_path / "a.gguf").touch()
    (tmp_path / "a.bin").touch()
    assert resolve(str(checkpoint)) == checkpoint
    assert resolve(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    with pytest.raises(ModelNotFound, match=r"a directory without a config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"neither a directory nor a \.gguf file"):
        resolve(str(tmp_path / "a.bin"))
    with pytest.raises(ModelNotFound, match="there is no directory or file /no/such/model"):
        resolve("/no/such/model")


def test_hub_id_that_cannot_be_had_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="nobody/nothing is not on this machine, and the model hub"):
        resolve("nobody/nothing")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            UnsupportedModel,
            "architecture MambaForCausalLM; supported are",
        ),
        ({"hidden_act": "relu"}, UnsupportedModel, "activation relu in a llama model; supported is silu"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, UnsupportedModel, "quantized with bitsandbytes"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, UnsupportedModel, "rotary positions of type dynamic; supported"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModel, "rotary positions on a part of each head"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    edit_config(checkpoint, **changes)
    with pytest.raises(error, match=message):
        read_card(checkpoint, cache_dir=tmp_path)


def test_config_without_a_needed_key_is_refused_by_its_name(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    write_json(checkpoint / "config.json", {"architectures": ["LlamaForCausalLM"], "vocab_size": 512})
    with pytest.raises(UnsupportedModel, match="has no 'num_attention_heads'"):
        read_card(checkpoint, cache_dir=tmp_path)


def test_missing_and_unused_tensors_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    weights = load_file(checkpoint / "model.safetensors")
    unused = weights | {"model.layers.0.self_attn.sinks": weights["model.norm.weight"]}
    save_file(unused, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"1 tensors that .* such as model\.layers\.0\.self_attn\.sinks"):
        load(checkpoint)
    del weights["model.norm.weight"]
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"no tensor model\.norm\.weight"):
        load(checkpoint)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"no \.safetensors files"):
        load_model(checkpoint, cache_dir=tmp_path, dtype=torch.float32, device="cpu")


def test_sharded_checkpoint_is_read_by_its_index(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "whole")
    sharded = make_checkpoint(tmp_path / "sharded")
    weights = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    index: dict[str, str] = {}
    for shard in range(2):
        names, file = sorted(weights)[shard::2], f"model-{shard + 1:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, sharded / file)
        index |= dict.fromkeys(names, file)
    write_json(sharded / "model.safetensors.index.json", {"weight_map": index})
    save_file({"layers.0.attention.wq.weight": weights["lm_head.weight"]}, sharded / "consolidated.safetensors")
    logits = [PagedModel(load(path)).step({0: [5, 6, 7]})[0] for path in (whole, sharded)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_part_of_a_gemma_that_sees_is_the_same_model(tmp_path: Path, prefix: str) -> None:
    text = make_checkpoint(tmp_path / "text", "gemma3")
    seeing = make_checkpoint(tmp_path / "seeing", "gemma3")
    weights = load_file(seeing / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): weight for name, weight in weights.items()}
    renamed["vision_tower.vision_model.embeddings.weight"] = weights["model.norm.weight"]
    save_file(renamed, seeing / "model.safetensors")
    config = json.loads((seeing / "config.json").read_text())
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config}
    write_json(seeing / "config.json", nested)
    logits = [PagedModel(load(path)).step({0: [5, 6, 7]})[0] for path in (text, seeing)]
    assert torch.equal(*logits)
