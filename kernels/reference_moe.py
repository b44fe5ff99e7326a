"""Mixtures of experts in plain PyTorch: rows sorted by expert, and one product for each expert that has any.

As in `kernels.reference`, a row's result depends on that row alone: not on which other rows chose its experts.
"""

import torch

from kernels.reference import linear, select_rows, silu_and_mul


def select_experts(
    router_logits: torch.Tensor, num_chosen: int, *, is_normalized: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(expert ids int64, weights fp32), both [n, num_chosen], likeliest first, from logits [n, num_experts].

    Of equally likely ones that with the lower id is first. A weight is the expert's probability among all; normalized,
    its share of the probability of those chosen.
    """
    logits = router_logits.float()
    expert_ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, :num_chosen]  # `topk` promises no order
    weights = logits.softmax(-1).gather(-1, expert_ids)
    return expert_ids, weights / weights.sum(-1, keepdim=True) if is_normalized else weights


def grouped_linear(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[n, out] like x [n, in], whose rows lie by expert: those of expert e times `weight[e].T`.

    weight: [num_experts, out, in]; ends: int64 [num_experts], where each expert's rows end; it may have none.
    """
    y = x.new_empty(x.shape[0], weight.shape[1])
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if start < end:
            y[start:end] = linear(x[start:end], weight[expert])
        start = end
    return y


def moe_feed_forward(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """[n, hidden] like x: the weighted sum of down(silu(gate(x)) * up(x)) over each row's experts.

    expert_ids, expert_weights: as `select_experts` gives them; gate_up [num_experts, 2 * inner, hidden], gate above up;
    down [num_experts, hidden, inner]. The sum is taken in fp32, in the order of a row's expert ids.
    """
    num_rows, num_chosen = expert_ids.shape
    chosen = expert_ids.flatten()
    order = chosen.argsort(stable=True)  # [num_rows * num_chosen]: places in `chosen`, those of expert 0 first
    ends = torch.bincount(chosen, minlength=gate_up.shape[0]).cumsum(0)
    inner = silu_and_mul(grouped_linear(select_rows(x, order // num_chosen), gate_up, ends))
    by_expert = grouped_linear(inner, down, ends)
    parts = torch.empty_like(by_expert).index_copy_(0, order, by_expert).view(num_rows, num_chosen, x.shape[1])
    total = x.new_zeros(x.shape, dtype=torch.float32)
    for choice in range(num_chosen):
        total += parts[:, choice] * expert_weights[:, choice, None]
    return total.to(x.dtype)
