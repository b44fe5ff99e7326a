"""A GGUF file's tensors under their Hugging Face names, as they are stored or dequantized."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize

from kernels.cpu.pack_grouped import GGUF_TYPES
from workers.models.errors import UnsupportedModel
from workers.models.progress import Progress
from workers.models.stored import StoredWeight, in_floats

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


class GgufFile:
    """Read access to the weights. `config` is the conversion's config.json."""

    def __init__(self, reader: GGUFReader, config: Mapping[str, Any]) -> None:
        self._config, self._family = config, config["model_type"]
        tensors = [tensor for tensor in reader.tensors if tensor.name not in IN_CONFIG]
        self._tensors = {hugging_face_name(tensor.name, self._family): tensor for tensor in tensors}

    def names(self) -> set[str]:
        return set(self._tensors)

    def size(self, name: str) -> int:
        return int(self._tensors[name].n_bytes)

    def read(self, name: str) -> StoredWeight:
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind in GGUF_TYPES:
            weight = StoredWeight(kind, (torch.from_numpy(np.array(tensor.data)),))  # a copy, for the file is mapped
        else:
            weight = in_floats(torch.from_numpy(_dequantize(tensor)))
        projection = name.split(".")[-2]
        if self._family == "llama" and projection in ("q_proj", "k_proj"):
            key = "num_attention_heads" if projection == "q_proj" else "num_key_value_heads"
            return weight.rearranged(partial(deinterleave, num_heads=self._config[key]))
        return weight


def read_floats(file: GgufFile, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of each weight: norms in fp32, all else in `dtype`."""
    progress = Progress("converting the weights", sum(map(file.size, file.names())))
    for name in sorted(file.names()):
        floats = file.read(name).floats().float()
        yield name, floats if "norm" in name else floats.to(dtype)
        progress.add(file.size(name))


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
    """Rows first, writable: float16 as it is, all else in fp32."""
    if tensor.data.dtype == np.float16:
        return np.array(tensor.data)
    return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
