"""A GGUF file's tensors under their Hugging Face names, as they are stored or dequantized."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize

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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",  # the * stands for each expert's number: one tensor holds them all
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
}
GEMMA3_PER_LAYER = PER_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
IN_CONFIG = {"rope_freqs.weight"}
INTERLEAVED = ("llama", "mixtral")  # whose heads of Q and K GGUF has in another order


@dataclass(frozen=True)
class Blocks:
    """A weight in the file, which is mapped: [rows, ...] of a type, or a vector."""

    kind: GGMLQuantizationType
    data: np.ndarray


class GgufFile:
    """Read access to the weights. `config` is the conversion's config.json."""

    def __init__(self, reader: GGUFReader, config: Mapping[str, Any]) -> None:
        self._config, self._family = config, config["model_type"]
        tensors = [tensor for tensor in reader.tensors if tensor.name not in IN_CONFIG]
        self._weights: dict[str, Blocks] = {}  # written here only
        for tensor in tensors:
            self._weights |= _weights_of(tensor, self._family)

    def names(self) -> set[str]:
        return set(self._weights)

    def size(self, name: str) -> int:
        return self._weights[name].data.nbytes

    def read(self, name: str) -> StoredWeight:
        blocks = self._weights[name]
        if blocks.kind.name in GGUF_TYPES:
            copied = torch.from_numpy(np.array(blocks.data))  # for the file is mapped
            weight = StoredWeight(blocks.kind.name, (copied,))
        else:
            weight = in_floats(torch.from_numpy(_dequantize(blocks)))
        projection = name.split(".")[-2]
        if self._family in INTERLEAVED and projection in ("q_proj", "k_proj"):
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
    """`model.layers.3.self_attn.q_proj.weight` for `blk.3.attn_q.weight`; UnsupportedModel for an unknown name.

    With a * for the number of the expert where a tensor is of all of them.
    """
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


def _weights_of(tensor: ReaderTensor, family: str) -> dict[str, Blocks]:
    """By name; those of all experts lie one after the other."""
    name = hugging_face_name(tensor.name, family)
    if "*" not in name:
        return {name: Blocks(tensor.tensor_type, tensor.data)}
    return {name.replace("*", str(expert)): Blocks(tensor.tensor_type, data) for expert, data in enumerate(tensor.data)}


def _dequantize(blocks: Blocks) -> np.ndarray:
    """Rows first, writable: float16 as it is, all else in fp32."""
    if blocks.data.dtype == np.float16:
        return np.array(blocks.data)
    return np.array(dequantize(blocks.data, blocks.kind), dtype=np.float32)
