"""Checkpoints with real shapes and random weights, in bf16 and as compressed-tensors W8A8; made once and kept.

Their text is noise: they serve to measure speed and memory, and never quality.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.bench.speed.shapes import Shape
from tests.bench.speed.vocabulary import CHAT_TEMPLATE, END_OF_TEXT, make_tokenizer

W8A8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "global_compression_ratio": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
            "output_activations": None,
        }
    },
}


def make_checkpoint(directory: Path, shape: Shape, *, is_w8a8: bool = False) -> Path:
    """The checkpoint below `directory`, which is made when it is not there."""
    target = directory / (f"{shape.name}-w8a8" if is_w8a8 else shape.name)
    if target.exists():
        return target
    print(f"making the checkpoint {target.name}, once", flush=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    partial.mkdir(parents=True)
    try:
        _write(partial, shape, is_w8a8=is_w8a8)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write(directory: Path, shape: Shape, *, is_w8a8: bool) -> None:
    weights = _make_weights(shape)
    config = make_config(shape)
    if is_w8a8:
        weights, config = _quantize(weights), config | {"quantization_config": W8A8}
    specials = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
    tokenizer: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    } | specials
    tokenizer |= {"model_max_length": shape.max_positions, "clean_up_tokenization_spaces": False}
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": False}
    files = {"config": config, "generation_config": generation, "tokenizer_config": tokenizer}
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value, indent=1))
    (directory / "tokenizer.json").write_text(make_tokenizer(shape.vocab_size))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def make_config(shape: Shape) -> dict[str, Any]:
    """config.json as transformers writes it."""
    return {
        "architectures": ["Qwen3ForCausalLM" if shape.model_type == "qwen3" else "LlamaForCausalLM"],
        "model_type": shape.model_type,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _make_weights(shape: Shape) -> dict[str, torch.Tensor]:
    """Every tensor by its Hugging Face name; matrices are of unit gain, so that rounding decides no greedy choice."""
    generator = torch.Generator().manual_seed(1234)

    def noise(num_rows: int, num_columns: int, deviation: float | None = None) -> torch.Tensor:
        values = torch.empty(num_rows, num_columns).normal_(0.0, deviation or num_columns**-0.5, generator=generator)
        return values.to(torch.bfloat16)

    hidden, inner, head_dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
    num_q, num_kv = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
    matrices = {
        "self_attn.q_proj": (num_q, hidden),
        "self_attn.k_proj": (num_kv, hidden),
        "self_attn.v_proj": (num_kv, hidden),
        "self_attn.o_proj": (hidden, num_q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if shape.model_type == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    weights = {"model.embed_tokens.weight": noise(shape.vocab_size, hidden, 0.05)}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        weights |= {f"{prefix}{name}.weight": noise(*size) for name, size in matrices.items()}
        weights |= {f"{prefix}{name}.weight": torch.ones(size, dtype=torch.bfloat16) for name, size in norms.items()}
    return weights | {"model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16)}


def _quantize(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layers' matrices in int8 with a scale for each output channel, beside the other tensors."""
    quantized = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            quantized[name] = weight
            continue
        scale = (weight.float().abs().amax(1, keepdim=True) / 127.0).clamp_min(1e-8)
        quantized[name] = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
        quantized[f"{name}_scale"] = scale.to(torch.bfloat16)
    return quantized
