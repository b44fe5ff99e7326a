"""Random weights made where they are computed with, by name, so that no file is needed."""

import zlib

import torch

from workers.models.config import ModelConfig
from workers.models.stored import StoredWeight, in_floats


class RandomCheckpoint:
    """A dense Qwen3's tensors: noise of unit gain, each a function of its name alone, made whenever it is read."""

    def __init__(self, config: ModelConfig, inner: int) -> None:
        hidden = config.hidden_size
        num_q, num_kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = {"q": (num_q, hidden), "k": (num_kv, hidden), "v": (num_kv, hidden), "o": (hidden, num_q)}
        self._shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (config.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        for layer in range(config.num_layers):
            prefix = f"model.layers.{layer}."
            self._shapes |= {f"{prefix}self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
            self._shapes |= {f"{prefix}self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
            self._shapes |= {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
            self._shapes |= {f"{prefix}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
            self._shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)

    def names(self) -> set[str]:
        return set(self._shapes)

    def size(self, name: str) -> int:
        return 0  # it is in no file

    def read(self, name: str) -> StoredWeight:
        shape = self._shapes[name]
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        return in_floats(noise * 0.1 + 1.0 if len(shape) == 1 else noise * shape[1] ** -0.5)
