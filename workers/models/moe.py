"""The feed-forward of a mixture of experts, under each of the names that checkpoints give its weights."""

import torch

import kernels
from workers.models.experts import Experts
from workers.models.weights import Weights


class MoeFeedForward:
    """The weighted sum of the feed-forwards of a few experts, which a router chooses for each token."""

    def __init__(self, experts: Experts, weights: Weights, layer: int) -> None:
        self.num_chosen, self.is_normalized = experts.num_chosen, experts.is_normalized
        prefix = f"model.layers.{layer}.mlp."
        is_mixtral = f"model.layers.{layer}.block_sparse_moe.gate.weight" in weights
        if is_mixtral:
            prefix = f"model.layers.{layer}.block_sparse_moe."
        self.router = weights.plain(f"{prefix}gate.weight")
        if f"{prefix}experts.gate_up_proj" in weights:  # stacked, as we hold them
            self.gate_up_proj = weights.plain(f"{prefix}experts.gate_up_proj")
            self.down_proj = weights.plain(f"{prefix}experts.down_proj")
        else:
            gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
            self.gate_up_proj = _stack(weights, f"{prefix}experts.", experts.num_experts, gate, up)
            self.down_proj = _stack(weights, f"{prefix}experts.", experts.num_experts, down)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] of the same."""
        router_logits = kernels.linear(x, self.router)  # [num_tokens, num_experts]
        expert_ids, expert_weights = kernels.select_experts(
            router_logits, self.num_chosen, is_normalized=self.is_normalized
        )
        return kernels.moe_feed_forward(x, expert_ids, expert_weights, self.gate_up_proj, self.down_proj)


def _stack(weights: Weights, prefix: str, num_experts: int, *parts: str) -> torch.Tensor:
    """[num_experts, rows of all parts, columns]"""
    names = [f"{prefix}{expert}.{part}.weight" for expert in range(num_experts) for part in parts]
    stacked = weights.plain(*names)
    return stacked.view(num_experts, -1, stacked.shape[1])
