"""Weights in four bits whose rows are integers times one scale, in the order of `int4.h`.

Where a group of 32 columns has a scale of its own in float, a product must leave the integers behind every group. Here
a group has a step and a middle in integers, and what a quant stands for fits in int8: the product with int8 rows is the
one of int8 weights.
"""

import torch
from torch.nn import functional

from kernels.cpu.packed import HALF_ROWS, PANEL_ROWS, TILE_ROWS, PackedMatrix, interleave_gates, pad

GROUP = 32  # `kInt4Group`
MIDDLE = 8  # `kInt4Middle`
MOST_STEP = 17  # 15 times it is a byte, as some kernels need
BLOCK_COLUMNS, QUAD = 64, 4  # `kInt8Block`, `kQuad`
SHIFT = 128  # what some kernels add to x, so that it has no sign
LOWEST, HIGHEST = -128, 127
ROUNDED_AT_ONCE = 1 << 17  # weights, which stay in a cache while steps are tried
PACKED_AT_ONCE = 1 << 24  # quants, which bounds the memory that packing takes beside its result
STEPS_BESIDE = (-1, 0, 1)  # the one that just spans a group, where a step more or less may err less

# quants uint8 [n, k] from 0 to 15, steps uint8 [n, k / 32], middles int8 of that shape, scales fp32 [n].
Rounded = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def quantize_int4(weight: torch.Tensor, *, is_gated: bool = False) -> PackedMatrix:
    """`weight` [n, k] as `round_int4` rounds it."""
    padded = functional.pad(weight, (0, -weight.shape[1] % GROUP))
    return pack_int4(*round_int4(padded), num_columns=weight.shape[1], is_gated=is_gated)


def integers_of(quants: torch.Tensor, steps: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """int8 [n, k]: what the quants stand for, in units of their row's scale."""
    groups = quants.view(*steps.shape, GROUP).short() - MIDDLE
    return (groups * steps[..., None] + middles[..., None]).to(torch.int8).flatten(1)


def round_int4(weight: torch.Tensor) -> Rounded:
    """What `pack_int4` takes, of a floating-point `weight` [n, k], which is about scales * `integers_of` it."""
    rows = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    chunks = [_round_rows(chunk.float().view(len(chunk), -1, GROUP)) for chunk in torch.split(weight, rows)]
    quants, steps, middles, scales = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return quants, steps, middles, scales


def _round_rows(groups: torch.Tensor) -> Rounded:
    """Of fp32 [n, k / 32, 32]. The scale that lets each row fill a byte is the unit of the search, and is then fitted
    to the integers found by least squares."""
    highest, lowest = groups.amax(2, keepdim=True), groups.amin(2, keepdim=True)
    units = torch.maximum(highest.amax(1, keepdim=True) / HIGHEST, lowest.amin(1, keepdim=True) / LOWEST)
    inverse = torch.where(units > 0, 1 / units, 0.0)
    steps, middles = _find_steps(groups * inverse, highest * inverse, lowest * inverse)
    quants = _round(groups * inverse, steps, middles)
    integers = (quants - MIDDLE) * steps + middles
    scales = (groups * integers).sum((1, 2)) / integers.square().sum((1, 2)).clamp(min=1)
    return quants.byte().flatten(1), steps.squeeze(2).byte(), middles.squeeze(2).to(torch.int8), scales


def _find_steps(groups: torch.Tensor, highest: torch.Tensor, lowest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps and middles [n, k / 32, 1] of the least squared error found, of groups whose values are within a byte."""
    spanning = ((highest - lowest) / 15).round()
    best, best_steps, best_middles = (torch.full_like(spanning, value) for value in (torch.inf, 1.0, 0.0))
    for beside in STEPS_BESIDE:
        steps = (spanning + beside).clamp(1, MOST_STEP)
        middles = ((highest + lowest + steps) / 2).round().clamp(LOWEST, HIGHEST)
        for _ in range(2):
            errors = groups - ((_round(groups, steps, middles) - MIDDLE) * steps + middles)
            squared = errors.square().sum(2, keepdim=True)
            is_better = squared < best
            best = torch.where(is_better, squared, best)
            best_steps = torch.where(is_better, steps, best_steps)
            best_middles = torch.where(is_better, middles, best_middles)
            middles = (middles + errors.mean(2, keepdim=True)).round().clamp(LOWEST, HIGHEST)
    return best_steps, best_middles


def _round(groups: torch.Tensor, steps: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """The quants [n, k / 32, 32], as floats, nearest to the groups of those that stand for a byte."""
    least = torch.ceil((LOWEST - middles) / steps).clamp(min=-MIDDLE)
    most = torch.floor((HIGHEST - middles) / steps).clamp(max=15 - MIDDLE)
    return ((groups - middles) / steps).round_().clamp_(least, most).add_(MIDDLE)


def pack_int4(
    quants: torch.Tensor,
    steps: torch.Tensor,
    middles: torch.Tensor,
    scales: torch.Tensor,
    *,
    num_columns: int | None = None,
    is_gated: bool = False,
) -> PackedMatrix:
    """scales * (steps * (quants - 8) + middles), typed as `Rounded`, as bytes [panels, 36 * padded k + 512].

    `num_columns` are those of the weight, if it was padded. With `is_gated` the first half of the rows are gates, as in
    `interleave_gates`.
    """
    num_rows = len(quants)
    num_columns = num_columns or quants.shape[1]
    parts = [quants, steps, middles.view(torch.uint8), scales.float()]
    if is_gated:
        parts = [interleave_gates(part) for part in parts]
    quants = pad(parts[0])
    padded_rows, padded_columns = quants.shape
    groups = padded_columns // GROUP
    heads = [functional.pad(part, (0, groups - part.shape[1], 0, padded_rows - len(part))) for part in parts[1:3]]
    ends = functional.pad(parts[3], (0, padded_rows - len(parts[3])))
    rows = max(PANEL_ROWS, PACKED_AT_ONCE // padded_columns // PANEL_ROWS * PANEL_ROWS)
    chunks = zip(*(torch.split(part, rows) for part in (quants, *heads, ends)), strict=True)
    data = torch.cat([_pack_panels(*chunk) for chunk in chunks])
    return PackedMatrix("int4", data, num_rows, num_columns, padded_rows, padded_columns, is_gated)


def _pack_panels(
    quants: torch.Tensor, steps: torch.Tensor, middles: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Of whole panels of rows."""
    num_panels = len(quants) // PANEL_ROWS
    by_tile = (num_panels, PANEL_ROWS // HALF_ROWS, HALF_ROWS // TILE_ROWS, TILE_ROWS, -1, BLOCK_COLUMNS // GROUP)
    pairs = quants.view(*by_tile, GROUP // QUAD // 2, 2, QUAD)
    nibbles = pairs[..., 0, :] | pairs[..., 1, :] << 4  # [panels, halves, tiles, 16 rows, blocks, groups, 4, 4]
    heads = torch.stack((steps, middles), dim=2).view(*by_tile, 2)
    tiles = torch.cat(
        (nibbles.permute(0, 1, 4, 2, 5, 6, 3, 7).flatten(4), heads.permute(0, 1, 4, 2, 5, 3, 6).flatten(4)), dim=4
    )
    sums = integers_of(quants, steps, middles.view(torch.int8)).sum(dim=1, dtype=torch.int32)
    ends = torch.stack((scales.view(torch.int32), sums * SHIFT))  # [2, padded n]
    ends = ends.view(2, num_panels, PANEL_ROWS).transpose(0, 1).flatten(1).contiguous()
    return torch.cat((tiles.flatten(1), ends.view(torch.uint8)), dim=1)
