"""A GGUF file's tensors under their Hugging Face names, dequantized."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize

from workers.models.errors import UnsupportedModel

log = logging.getLogger(__name__)

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA3_PER_LAYER = PER_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
IN_CONFIG = {"rope_freqs.weight"}


def read_tensors(
    reader: GGUFReader, config: Mapping[str, Any], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of each weight: norms in fp32, all else in `dtype`. `config` is the conversion's config.json."""
    family = config["model_type"]
    tensors = [tensor for tensor in reader.tensors if tensor.name not in IN_CONFIG]
    num_bytes, total_bytes, reported = 0, sum(int(tensor.n_bytes) for tensor in tensors), 0
    for tensor in tensors:
        name = hugging_face_name(tensor.name, family)
        weight = torch.from_numpy(_dequantize(tensor))
        if family == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            is_query = name.split(".")[-2] == "q_proj"
            weight = deinterleave(weight, config["num_attention_heads" if is_query else "num_key_value_heads"])
        yield name, weight if "norm" in name else weight.to(dtype)
        num_bytes += int(tensor.n_bytes)
        if num_bytes * 10 // total_bytes > reported:
            reported = num_bytes * 10 // total_bytes
            log.info("converting the weights: %d %%", reported * 10)


def hugging_face_name(name: str, family: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; UnsupportedModel for an unknown name."""
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    per_layer = GEMMA3_PER_LAYER if family == "gemma3_text" else PER_LAYER
    _, _, rest = stem.partition("blk.")
    layer, _, part = rest.partition(".")
    if part not in per_layer:
        raise UnsupportedModel(f"tensor {name} in a GGUF file of a {family} model")
    return f"model.layers.{layer}.{per_layer[part]}.{kind}"


def deinterleave(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of Q or K as Hugging Face orders them: GGUF's llama rotates neighbours, Hugging Face halves of a head."""
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(weight.shape)


def _dequantize(tensor: ReaderTensor) -> np.ndarray:
    """fp32, rows first, writable."""
    return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
