"""Writes a tiny checkpoint of tests/checkpoints.py as a GGUF file, as llama.cpp's converter would."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from workers.models.gguf_tensors import GEMMA3_PER_LAYER, PER_LAYER, TOP

Q4_K, Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
SUPER_BLOCK = 256  # columns of a block of these
FAMILIES = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}
ROUTERS = {r"mlp\.gate\.": gguf.GGMLQuantizationType.F32}
EXPERT = re.compile(r"\.experts\.(\d+)\.")
MIXTRAL_NAMES = {"block_sparse_moe": "mlp", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def write_gguf(
    checkpoint: Path,
    path: Path,
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    rope_factors: np.ndarray | None = None,
) -> Path:
    """Write `checkpoint` to `path` and return it; vectors and routers in fp32, matrices in the type that `types` has
    for a pattern of their names in the checkpoint, all others in `quantization`."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, FAMILIES[config["model_type"]])
    add_shape(writer, config)
    add_tokenizer(writer, json.loads((checkpoint / "tokenizer.json").read_text()), config)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    for name, weight in stacked(load_file(checkpoint / "model.safetensors")).items():
        weight = as_stored(name, weight, config)
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name, config["model_type"]), weight)
        else:
            kinds = ROUTERS | (types or {})
            kind = next((kind for pattern, kind in kinds.items() if re.search(pattern, name)), quantization)
            writer.add_tensor(gguf_name(name, config["model_type"]), quantize(name, weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stacked(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one tensor for all experts of a layer, a * in its name; Mixtral's by the names that Qwen has."""
    experts: dict[str, dict[int, np.ndarray]] = {}
    others = {}
    for name, weight in weights.items():
        name = ".".join(MIXTRAL_NAMES.get(part, part) for part in name.split("."))
        if found := EXPERT.search(name):
            experts.setdefault(EXPERT.sub(".experts.*.", name), {})[int(found[1])] = weight
        else:
            others[name] = weight
    return others | {name: np.stack([each[number] for number in range(len(each))]) for name, each in experts.items()}


def quantize(name: str, weight: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The blocks of `weight`; in the types that gguf cannot make, random ones with as large values."""
    if kind not in (Q4_K, Q6_K):
        return gguf.quantize(weight, kind)
    num_blocks = weight.shape[-1] // SUPER_BLOCK
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    shape = (*weight.shape[:-1], num_blocks, gguf.GGML_QUANT_SIZES[kind][1])
    blocks = generator.integers(0, 256, shape, dtype=np.uint8)
    # Quants and the factors of scales spread evenly: what a block's values then are, in units of its scale.
    scale = weight.std() / (200 if kind == Q4_K else 1400)
    if kind == Q4_K:
        blocks[..., :4] = np.array([scale, 7.5 * scale], np.float16).view(
            np.uint8
        )  # minima in the middle of the quants
    else:
        blocks[..., -2:] = np.array([scale], np.float16).view(np.uint8)
    return blocks.reshape(*weight.shape[:-1], -1)


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    if num_experts := config.get("num_experts", config.get("num_local_experts")):
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_weights_scale(config.get("routed_scaling_factor", 1.0))
        if not config.get("norm_topk_prob", True):
            writer.add_expert_weights_norm(False)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["id"] for token in tokenizer["added_tokens"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocab)
    writer.add_token_types([control if token_id in special else normal for token_id in range(len(vocab))])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def gguf_name(name: str, family: str) -> str:
    stem, _, kind = name.rpartition(".")
    for ours, theirs in TOP.items():
        if stem == theirs:
            return f"{ours}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    parts = {theirs: ours for ours, theirs in (GEMMA3_PER_LAYER if family == "gemma3_text" else PER_LAYER).items()}
    return f"blk.{layer}.{parts[part]}.{kind}"


def as_stored(name: str, weight: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """The tensor as GGUF has it: Gemma's norms plus one, Llama's Q and K with the halves of a head interleaved."""
    if config["model_type"] == "gemma3_text" and "norm" in name:
        return weight + np.float32(1)
    for projection, num_heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if config["model_type"] in ("llama", "mixtral") and projection in name:
            halves = weight.reshape(config[num_heads], 2, -1, *weight.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
    return weight
