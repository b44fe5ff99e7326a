"""Self-attention and the gated feed-forward, as every supported architecture has them."""

import torch

import kernels
from kernels import AttentionBatch
from workers.models.config import ModelConfig
from workers.models.weights import Weights


class SelfAttention:
    """Projects, normalizes where the architecture does, rotates, stores K and V, attends, projects back."""

    def __init__(self, config: ModelConfig, weights: Weights, layer: int, *, has_qk_norm: bool = False) -> None:
        prefix = f"model.layers.{layer}.self_attn."
        projections = [f"{prefix}{name}_proj" for name in "qkv"]
        self.layer = layer
        self.num_heads = config.num_heads
        self.scale, self.sliding_window = config.attention_scale, config.sliding_windows[layer]
        self.eps = config.rms_norm_eps
        self.qkv_proj = weights.matrix(*(f"{name}.weight" for name in projections))
        has_bias = f"{projections[0]}.bias" in weights
        self.qkv_bias = weights.plain(*(f"{name}.bias" for name in projections)) if has_bias else None
        self.o_proj = weights.matrix(f"{prefix}o_proj.weight")
        self.o_bias = weights.plain(f"{prefix}o_proj.bias") if f"{prefix}o_proj.bias" in weights else None
        self.q_norm = weights.norm(f"{prefix}q_norm.weight", config.norm_offset) if has_qk_norm else None
        self.k_norm = weights.norm(f"{prefix}k_norm.weight", config.norm_offset) if has_qk_norm else None

    def __call__(
        self, x: torch.Tensor, cos_sin: torch.Tensor, kv_cache: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] of the same; writes this layer's K and V of every token."""
        qkv = kernels.linear(x, self.qkv_proj, self.qkv_bias)
        kv_layer = kv_cache[:, self.layer]
        q = kernels.rotate_and_store(
            qkv,
            cos_sin,
            kv_layer,
            batch,
            num_heads=self.num_heads,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=self.eps,
        )
        out = kernels.paged_attention(q, kv_layer, batch, self.scale, self.sliding_window)
        return kernels.linear(out, self.o_proj, self.o_bias)


class FeedForward:
    """down(activation(gate(x)) * up(x))"""

    def __init__(self, weights: Weights, layer: int, activation: str) -> None:
        prefix = f"model.layers.{layer}.mlp."
        self.gate_up_proj = weights.matrix(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight", is_gated=True)
        self.down_proj = weights.matrix(f"{prefix}down_proj.weight")
        self.activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.linear(kernels.gated_linear(x, self.gate_up_proj, self.activation), self.down_proj)


class Rotary:
    """The rotation of each position. Layers that rotate alike share one table per step."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.ropes = config.ropes
        self.inv_freqs = {rope: rope.inv_freq(config.head_dim).to(device) for rope in set(config.ropes)}

    def __call__(self, positions: torch.Tensor) -> list[torch.Tensor]:
        """Per layer, fp32 [num_tokens, 2, head_dim / 2]."""
        tables = {
            rope: kernels.rotary_cos_sin(positions, inv_freq, rope.attention_factor)
            for rope, inv_freq in self.inv_freqs.items()
        }
        return [tables[rope] for rope in self.ropes]
