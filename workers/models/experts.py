"""What config.json says of a layer's experts. Knows no weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Experts:
    """The experts of one layer, and how a token chooses among them."""

    num_experts: int
    num_chosen: int  # experts that compute a token
    is_normalized: bool  # the weights of those chosen add up to one


def read_experts(config: Mapping[str, Any], layer: int) -> Experts | None:
    """The experts of that layer; None when it has one feed-forward for all tokens."""
    match config["model_type"]:
        case "mixtral":
            return _make_experts(config, is_normalized=True)
        case "qwen3_moe":
            is_sparse = (layer + 1) % config.get("decoder_sparse_step", 1) == 0
            if is_sparse and layer not in (config.get("mlp_only_layers") or ()):
                return _make_experts(config, is_normalized=config.get("norm_topk_prob", False))
    return None


def _make_experts(config: Mapping[str, Any], *, is_normalized: bool) -> Experts:
    # Mixtral's name, and the one under which transformers saves every architecture since its version 5.
    count = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return Experts(config[count], config["num_experts_per_tok"], is_normalized)
