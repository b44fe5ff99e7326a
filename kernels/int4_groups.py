"""Floats rounded to int4 in groups of columns with a scale each, for the kernels of a GPU."""

import torch

GROUP = 32  # columns
ROUNDED_AT_ONCE = 1 << 17  # weights, which stay in a cache while candidates for their scales are tried
REACHES = (6.6, 7.0, 7.4, 7.7, 8.0, 8.3, 8.7)  # where a group's extreme value may come to lie, in steps


def round_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(quants uint8 [n, k] from 0 to 15, scales fp32 [n, k / 32]) of `weight` [n, k], about scales * (quants - 8).

    Groups are 32 columns, each with the scale of least squared error found.
    """
    rows = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    chunks = [_round_groups(chunk.float().view(len(chunk), -1, GROUP)) for chunk in torch.split(weight, rows)]
    quants, scales = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return quants, scales


def _round_groups(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(quants uint8 [n, k], scales [n, k / 32]) of fp32 [n, k / 32, 32].

    The 4 bits reach from -8 to 7. Each candidate rounds the group with its extreme value near -8 and then takes the
    scale that fits these integers best, for which the error falls by (w . q)^2 / (q . q).
    """
    largest, smallest = groups.amax(2, keepdim=True), groups.amin(2, keepdim=True)
    extreme = torch.where(largest > -smallest, largest, smallest)
    inverse = torch.where(extreme == 0, 0.0, -1 / extreme)
    best_gain, best_inverse = torch.full_like(extreme, -1.0), torch.zeros_like(extreme)
    for reach in REACHES:
        rounded = (groups * (inverse * reach)).round_().clamp_(-8, 7)
        gain = (groups * rounded).sum(2, keepdim=True).square_() / rounded.square().sum(2, keepdim=True).clamp_(min=1)
        is_better = gain > best_gain
        best_gain = torch.where(is_better, gain, best_gain)
        best_inverse = torch.where(is_better, inverse * reach, best_inverse)
    rounded = (groups * best_inverse).round_().clamp_(-8, 7)
    scales = (groups * rounded).sum(2) / rounded.square().sum(2).clamp_(min=1)
    return (rounded + 8).to(torch.uint8).flatten(1), scales
