"""Rotary position settings, and the frequencies they mean. The scaling rules are those of Hugging Face's configs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workers.models.errors import UnsupportedModel

SUPPORTED = ("default", "linear", "llama3", "factors")


@dataclass(frozen=True)
class Rope:
    """Rotary positions of one kind of layer."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position: int = 8192  # llama3
    factors: tuple[float, ...] = ()  # one divisor per frequency, as GGUF files carry them

    def inv_freq(self, head_dim: int) -> torch.Tensor:
        """fp32 [head_dim / 2]: radians per position of each rotating pair, rounded as Hugging Face rounds them."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv_freq = 1.0 / (self.theta**exponents)
        match self.kind:
            case "linear":
                return inv_freq / self.factor
            case "llama3":
                return self._llama3(inv_freq)
            case "factors":
                return inv_freq / torch.tensor(self.factors)
        return inv_freq

    def _llama3(self, inv_freq: torch.Tensor) -> torch.Tensor:
        """Long waves are stretched by `factor`, short ones kept, those between blended."""
        wavelength = 2 * math.pi / inv_freq  # tokens per turn
        turns = self.original_max_position / wavelength  # over the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        stretched = torch.where(turns < self.low_freq_factor, inv_freq / self.factor, blended)
        return torch.where(turns > self.high_freq_factor, inv_freq, stretched)


def read_rope(config: Mapping[str, Any], *, is_sliding: bool) -> Rope:
    """The rotary settings of a full or sliding layer; UnsupportedModel names a kind that is not computed."""
    parameters = config.get("rope_parameters") or {}
    by_layer_type = parameters.get("sliding_attention" if is_sliding else "full_attention")
    if by_layer_type is not None:
        return _make_rope(by_layer_type, config)
    if is_sliding and config["model_type"] in ("gemma3", "gemma3_text"):
        return Rope(theta=config.get("rope_local_base_freq", 10000.0))  # the scaling is for the full layers alone
    return _make_rope(config.get("rope_scaling") or parameters, config)


def _make_rope(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SUPPORTED:
        raise UnsupportedModel(f"rotary positions of type {kind}; supported are {', '.join(SUPPORTED)}")
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("rotary positions on a part of each head")
    return Rope(
        theta=float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0),
        kind=kind,
        factor=float(parameters.get("factor", 1.0)),
        low_freq_factor=float(parameters.get("low_freq_factor", 1.0)),
        high_freq_factor=float(parameters.get("high_freq_factor", 4.0)),
        original_max_position=int(parameters.get("original_max_position_embeddings", 8192)),
        factors=tuple(parameters.get("factors", ())),
    )
