"""Rotary position settings, and the frequencies they mean. The scaling rules are those of Hugging Face's configs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workers.models.errors import UnsupportedModel

SUPPORTED = ("default", "linear", "llama3", "yarn", "factors")


@dataclass(frozen=True)
class Rope:
    """Rotary positions of one kind of layer."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position: int = 8192  # llama3, yarn: tokens of context before it was stretched
    beta_fast: float = 32.0  # yarn: turns over the original context from which a frequency is kept
    beta_slow: float = 1.0  # yarn: turns up to which it is stretched
    is_truncated: bool = True  # yarn: the frequencies of so many turns are rounded to whole ones
    attention_factor: float = 1.0  # yarn: cosines and sines are multiplied by it
    factors: tuple[float, ...] = ()  # one divisor per frequency, as GGUF files carry them

    def inv_freq(self, head_dim: int) -> torch.Tensor:
        """fp32 [head_dim / 2]: radians per position of each rotating pair, rounded as Hugging Face rounds them."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        periods = self.theta**exponents  # tokens per radian
        inv_freq = 1.0 / periods
        match self.kind:
            case "linear":
                return inv_freq / self.factor
            case "llama3":
                return self._llama3(inv_freq)
            case "yarn":
                return self._yarn(periods)
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

    def _yarn(self, periods: torch.Tensor) -> torch.Tensor:
        """Short waves are kept, long ones stretched by `factor`, those between blended by their index."""
        num_dims = 2 * len(periods)
        low, high = self._index_of(self.beta_fast, num_dims), self._index_of(self.beta_slow, num_dims)
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, num_dims - 1)
        width = high - low or 0.001
        kept = 1 - ((torch.arange(len(periods), dtype=torch.float32) - low) / width).clamp(0, 1)
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept

    def _index_of(self, turns: float, num_dims: int) -> float:
        """Which frequency makes so many turns over the original context, as a fraction between two of them."""
        period = self.original_max_position / (turns * 2 * math.pi)
        return num_dims * math.log(period) / (2 * math.log(self.theta))

    @property
    def stretched_length(self) -> int:
        """Tokens of context that YaRN makes of the original ones, else 0: configs leave max_position_embeddings."""
        return round(self.factor * self.original_max_position) if self.kind == "yarn" else 0


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
    factor = 1.0 if kind in ("default", "factors") else float(parameters["factor"])
    return Rope(
        theta=float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0),
        kind=kind,
        factor=factor,
        low_freq_factor=float(parameters.get("low_freq_factor", 1.0)),
        high_freq_factor=float(parameters.get("high_freq_factor", 4.0)),
        original_max_position=int(
            config.get("original_max_position_embeddings")
            or parameters.get("original_max_position_embeddings")
            or config["max_position_embeddings"]
        ),
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        is_truncated=parameters.get("truncate", True),
        attention_factor=_attention_factor(parameters, factor) if kind == "yarn" else 1.0,
        factors=tuple(parameters.get("factors", ())),
    )


def _attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """YaRN's: the one given, else what its paper makes of the stretch, or the quotient of two such."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return grown(scale) / grown(scale_all) if scale and scale_all else grown(1.0)
