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
        self.router = weights.matrix(f"{prefix}gate.weight", is_exact=True)
        if f"{prefix}experts.gate_up_proj" in weights:
            gate_up, down = ["gate_up_proj"], "down_proj"  # stacked, of all experts
        elif is_mixtral:
            gate_up, down = ["*.w1.weight", "*.w3.weight"], "*.w2.weight"
        else:
            gate_up, down = ["*.gate_proj.weight", "*.up_proj.weight"], "*.down_proj.weight"
        names = [f"{prefix}experts.{name}" for name in gate_up]
        self.gate_up_proj = weights.experts(experts.num_experts, *names, is_gated=True)
        self.down_proj = weights.experts(experts.num_experts, f"{prefix}experts.{down}")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] of the same."""
        router_logits = kernels.linear(x, self.router, out_dtype=torch.float32)  # [num_tokens, num_experts]
        expert_ids, expert_weights = kernels.select_experts(
            router_logits, self.num_chosen, is_normalized=self.is_normalized
        )
        return kernels.moe_feed_forward(x, expert_ids, expert_weights, self.gate_up_proj, self.down_proj)
