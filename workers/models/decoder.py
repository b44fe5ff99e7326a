"""The path of every architecture: embed, layer after layer, logits of the rows that sample."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch

import kernels
from kernels import AttentionBatch
from workers.models.cache import Held
from workers.models.config import ModelConfig
from workers.models.layers import Rotary
from workers.models.weights import Weights


class DecoderLayer(Protocol):
    """A layer reads the normalized residual stream, adds to the stream, and normalizes it for the next layer."""

    input_norm: torch.Tensor

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
        """(the new stream through `next_norm`, the new stream), both [num_tokens, hidden_size]."""
        ...


class Decoder(ABC):
    """A causal language model. Its forward pass is a flat list of `kernels` operations."""

    embedding_scale: float | None = None
    packed: Held | None = None  # what its weights were read from, while it lives; written by the loader

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.embed_tokens = weights.table("model.embed_tokens.weight")
        self.layers = [self.make_layer(weights, layer) for layer in range(config.num_layers)]
        self.norm = weights.norm("model.norm.weight", config.norm_offset)
        self.lm_head = self.embed_tokens if config.is_tied else weights.matrix("lm_head.weight")
        self.rotary = Rotary(config, weights.device)

    @abstractmethod
    def make_layer(self, weights: Weights, layer: int) -> DecoderLayer:
        """The layer of that number."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Logits fp32 [num_rows, vocab_size] of the rows named; K and V of all tokens go into the cache.

        input_ids, positions: int64 [num_tokens]; logits_rows: int64 [num_rows], indices into them; kv_cache as
        `kernels.make_kv_cache` lays it out.
        """
        return self.forward_with_states(input_ids, positions, kv_cache, batch, logits_rows)[0]

    def forward_with_states(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: AttentionBatch,
        logits_rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `forward`, and the last hidden states [num_tokens, hidden_size] of all tokens, through the final norm."""
        tables = self.rotary(positions)
        residual = kernels.embedding(input_ids, self.embed_tokens, self.embedding_scale)  # [num_tokens, hidden_size]
        x = kernels.rms_norm(residual, self.layers[0].input_norm, self.config.rms_norm_eps)
        next_norms = [layer.input_norm for layer in self.layers[1:]] + [self.norm]
        for layer, cos_sin, next_norm in zip(self.layers, tables, next_norms, strict=True):
            x, residual = layer(x, residual, cos_sin=cos_sin, kv_cache=kv_cache, batch=batch, next_norm=next_norm)
        logits = kernels.linear(kernels.select_rows(x, logits_rows), self.lm_head, out_dtype=torch.float32)
        return logits, x
