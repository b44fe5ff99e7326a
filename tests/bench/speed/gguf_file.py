"""The benchmark's checkpoints as GGUF, which llama.cpp reads."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors import safe_open

from tests.bench.speed.shapes import Shape

OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
IN_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_gguf(checkpoint: Path, shape: Shape, form: str, quantize: Path) -> Path:
    """The file beside the checkpoint, made once; any `form` but bf16 is what `quantize`, llama.cpp's, makes of it."""
    target = checkpoint.with_name(f"{checkpoint.name}-{form}.gguf")
    if target.exists():
        return target
    partial = target.with_suffix(f".{os.getpid()}.unfinished")
    if form == "bf16":
        _write(checkpoint, shape, partial)
    else:
        whole = make_gguf(checkpoint, shape, "bf16", quantize)
        subprocess.run([quantize, "--pure", whole, partial, form], check=True, capture_output=True)
    return partial.rename(target)


def _write(checkpoint: Path, shape: Shape, path: Path) -> None:
    out = gguf.GGUFWriter(path, shape.model_type)
    _add_shape(out, shape)
    _add_tokenizer(out, json.loads((checkpoint / "tokenizer.json").read_text()))
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is no dictionary
            _add_tensor(out, name, file.get_tensor(name), shape)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _add_shape(out: Any, shape: Shape) -> None:
    out.add_name(shape.name)
    out.add_context_length(shape.max_positions)
    out.add_embedding_length(shape.hidden_size)
    out.add_block_count(shape.num_layers)
    out.add_feed_forward_length(shape.intermediate_size)
    out.add_head_count(shape.num_heads)
    out.add_head_count_kv(shape.num_kv_heads)
    out.add_key_length(shape.head_dim)
    out.add_value_length(shape.head_dim)
    out.add_layer_norm_rms_eps(shape.rms_norm_eps)
    out.add_rope_freq_base(shape.rope_theta)
    out.add_vocab_size(shape.vocab_size)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    if shape.model_type == "llama":
        out.add_rope_dimension_count(shape.head_dim)


def _add_tokenizer(out: Any, tokenizer: dict[str, Any]) -> None:
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    kinds = [gguf.TokenType.CONTROL if token_id in special else gguf.TokenType.NORMAL for _, token_id in vocab]
    merges = tokenizer["model"]["merges"]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([token for token, _ in vocab])
    out.add_token_types(kinds)
    out.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_add_bos_token(False)


def _add_tensor(out: Any, name: str, weight: torch.Tensor, shape: Shape) -> None:
    if shape.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        weight = _interleave(weight, shape.head_dim)
    if weight.ndim == 1:  # llama.cpp wants norms in fp32
        out.add_tensor(_gguf_name(name), weight.float().numpy())
        return
    raw = weight.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    out.add_tensor(_gguf_name(name), raw, raw_shape=raw.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)


def _gguf_name(name: str) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{IN_LAYER[part]}.weight"


def _interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Hugging Face rotates the halves of a head, GGUF's llama neighbours: its rows are in another order."""
    return weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
