"""Gemma 3, its text part: norms on both sides of attention and feed-forward, and sliding layers between full ones."""

import torch

import kernels
from kernels import AttentionBatch
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.layers import FeedForward, SelfAttention
from workers.models.weights import Weights


class Gemma3Model(Decoder):
    """Embeddings are scaled by the root of their size."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.embedding_scale = config.hidden_size**0.5

    def make_layer(self, weights: Weights, layer: int) -> "Gemma3Layer":
        return Gemma3Layer(self.config, weights, layer)


class Gemma3Layer:
    """One decoder layer."""

    def __init__(self, config: ModelConfig, weights: Weights, layer: int) -> None:
        def norm(name: str) -> torch.Tensor:
            return weights.norm(f"model.layers.{layer}.{name}_layernorm.weight", config.norm_offset)

        self.eps = config.rms_norm_eps
        self.input_norm = norm("input")
        self.attention = SelfAttention(config, weights, layer, has_qk_norm=True)
        self.post_attention_norm = norm("post_attention")
        self.pre_feed_forward_norm = norm("pre_feedforward")
        self.feed_forward = FeedForward(weights, layer, "gelu")
        self.post_feed_forward_norm = norm("post_feedforward")

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
        x = kernels.rms_norm(self.attention(x, cos_sin, kv_cache, batch), self.post_attention_norm, self.eps)
        x, residual = kernels.add_rms_norm(x, residual, self.pre_feed_forward_norm, self.eps)
        x = kernels.rms_norm(self.feed_forward(x), self.post_feed_forward_norm, self.eps)
        return kernels.add_rms_norm(x, residual, next_norm, self.eps)
