"""Llama, and what is built like it: Mistral, SmolLM."""

import torch

import kernels
from kernels import AttentionBatch
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.layers import FeedForward, SelfAttention
from workers.models.moe import MoeFeedForward
from workers.models.weights import Weights


class LlamaModel(Decoder):
    """A norm before attention and one before the feed-forward."""

    has_qk_norm = False

    def make_layer(self, weights: Weights, layer: int) -> "LlamaLayer":
        return LlamaLayer(self.config, weights, layer, has_qk_norm=self.has_qk_norm)


class LlamaLayer:
    """One decoder layer."""

    def __init__(self, config: ModelConfig, weights: Weights, layer: int, *, has_qk_norm: bool) -> None:
        prefix = f"model.layers.{layer}."
        self.eps = config.rms_norm_eps
        self.input_norm = weights.norm(f"{prefix}input_layernorm.weight")
        self.attention = SelfAttention(config, weights, layer, has_qk_norm=has_qk_norm)
        self.post_attention_norm = weights.norm(f"{prefix}post_attention_layernorm.weight")
        self.feed_forward = _make_feed_forward(config, weights, layer)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        *,
        cos_sin: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        next_norm: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.attention(x, cos_sin, kv_cache, batch)
        x, residual = kernels.add_rms_norm(x, residual, self.post_attention_norm, self.eps)
        x = self.feed_forward(x)
        return kernels.add_rms_norm(x, residual, next_norm, self.eps)


def _make_feed_forward(config: ModelConfig, weights: Weights, layer: int) -> FeedForward | MoeFeedForward:
    experts = config.experts[layer]
    if experts is not None:
        return MoeFeedForward(experts, weights, layer)
    return FeedForward(weights, layer, "silu")
