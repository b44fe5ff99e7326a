"""Weights quantized in groups along k, in the layouts of `grouped.h`.

The quants of a weight [n, k] come as unsigned integers of 4, 5, 6 or 8 bits. 8 groups of 32 with scales and minima of
their own under a common factor are a super-block, as GGUF's K formats have them.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from kernels.cpu.packed import PackedMatrix, interleave_gates, pad

GROUP, SUPER_GROUPS = 32, 8
PANEL_ROWS, TILE_ROWS = 32, 16  # `kPanelRows`, `kColumnTile`
PACKED_AT_ONCE = 1 << 24  # quants, which bounds the memory that packing takes beside its result


def pack_scaled(
    quants: torch.Tensor,
    scales: torch.Tensor,
    *,
    bits: int,
    zeros: torch.Tensor | None = None,
    is_gated: bool = False,
) -> PackedMatrix:
    """scales * (quants - zeros): quants uint8 [n, k] of `bits` (4, 5 or 8), scales [n, k / group] kept in float16.

    `zeros` are integers of scales' shape for 4 bits, at most 127; without them they are half the quants' range. A
    group is 32 columns or a multiple.
    """
    num_rows, num_columns = quants.shape
    per_group = [scales.half()] if zeros is None else [scales.half(), zeros.to(torch.uint8)]
    heads = [_per_32_columns(values, num_columns) for values in per_group]
    name = f"q{bits}" if zeros is None else f"q{bits}_zero"
    return _pack(name, quants, heads, bits, 1, is_gated)


def pack_q4_k(
    quants: torch.Tensor,
    scales: torch.Tensor,
    mins: torch.Tensor,
    scale_factors: torch.Tensor,
    min_factors: torch.Tensor,
    *,
    is_gated: bool = False,
) -> PackedMatrix:
    """scales * scale_factors * quants - mins * min_factors: quants uint8 [n, k] of 4 bits, scales and mins float16
    [n, k / 256], their factors uint8 [n, k / 32]."""
    return _pack("q4_k", quants, [scales, mins, scale_factors, min_factors], 4, SUPER_GROUPS, is_gated)


def pack_q6_k(
    quants: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, *, is_gated: bool = False
) -> PackedMatrix:
    """scales * factors * (quants - 32): quants uint8 [n, k] of 6 bits, scales float16 [n, k / 256], factors int8
    [n, k / 16]."""
    return _pack("q6_k", quants, [scales, factors], 6, SUPER_GROUPS, is_gated)


def from_gguf(tensor_type: str, data: torch.Tensor, n: int, k: int, *, is_gated: bool = False) -> PackedMatrix:
    """A GGUF tensor's bytes (uint8, any shape) of a weight [n, k] of type Q4_0, Q5_0, Q8_0, Q4_K or Q6_K, repacked."""
    repack, block_columns = GGUF_TYPES[tensor_type]
    return repack(data.reshape(n, k // block_columns, -1), is_gated=is_gated)


def _halves(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(data: torch.Tensor) -> torch.Tensor:
    """[..., m] bytes as [..., 2 * m]: the lower nibbles of all, then the upper."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _from_q4_0(blocks: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    return pack_scaled(_nibbles(blocks[..., 2:]).flatten(1), _halves(blocks[..., :2]), bits=4, is_gated=is_gated)


def _from_q5_0(blocks: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    fifth = (blocks[..., 2:6, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(2)
    quants = _nibbles(blocks[..., 6:]) | fifth << 4
    return pack_scaled(quants.flatten(1), _halves(blocks[..., :2]), bits=5, is_gated=is_gated)


def _from_q8_0(blocks: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    return pack_scaled((blocks[..., 2:] ^ 128).flatten(1), _halves(blocks[..., :2]), bits=8, is_gated=is_gated)


def _from_q4_k(blocks: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    scales, mins = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    # Six bits each: four scales, four minima, then the lower nibbles of the other four of both, whose upper two bits
    # are the first four's.
    first, second, lower = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale_factors = torch.cat((first & 63, lower & 15 | first >> 2 & 48), dim=-1)
    min_factors = torch.cat((second & 63, lower >> 4 | second >> 2 & 48), dim=-1)
    quants = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return pack_q4_k(
        quants.flatten(1), scales, mins, scale_factors.flatten(1), min_factors.flatten(1), is_gated=is_gated
    )


def _from_q6_k(blocks: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    lower = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64))
    pairs = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32)
    upper = torch.cat([pairs >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    quants = lower | upper << 4
    factors = blocks[..., 192:208].contiguous().view(torch.int8)
    return pack_q6_k(quants.flatten(1), _halves(blocks[..., 208:]), factors.flatten(1), is_gated=is_gated)


GGUF_TYPES: dict[str, tuple[Callable[..., PackedMatrix], int]] = {
    "Q4_0": (_from_q4_0, 32),
    "Q5_0": (_from_q5_0, 32),
    "Q8_0": (_from_q8_0, 32),
    "Q4_K": (_from_q4_k, 256),
    "Q6_K": (_from_q6_k, 256),
}


def _per_32_columns(values: torch.Tensor, num_columns: int) -> torch.Tensor:
    """One for every 32 columns, of values [n, groups]."""
    group = num_columns // values.shape[1]
    assert num_columns == group * values.shape[1] and group % GROUP == 0, "groups are of 32 columns or a multiple"
    return values.repeat_interleave(group // GROUP, dim=1)


def _pack(
    name: str, quants: torch.Tensor, heads: list[torch.Tensor], bits: int, block_groups: int, is_gated: bool
) -> PackedMatrix:
    """`heads` [n, blocks * what a block has of it]."""
    num_rows, num_columns = quants.shape
    block_columns = GROUP * block_groups
    assert num_columns % block_columns == 0, f"{num_columns} columns are no whole blocks of {block_columns}"
    if is_gated:
        quants, heads = interleave_gates(quants), [interleave_gates(head) for head in heads]
    num_blocks = num_columns // block_columns
    shapes = [head.shape[1] // num_blocks for head in heads]
    quants = pad(quants)
    padded_rows, padded_columns = quants.shape
    padded_blocks = padded_columns // block_columns
    heads = [
        functional.pad(head, (0, padded_blocks * width - head.shape[1], 0, padded_rows - len(head)))
        for head, width in zip(heads, shapes, strict=True)
    ]
    rows = max(PANEL_ROWS, PACKED_AT_ONCE // padded_columns // PANEL_ROWS * PANEL_ROWS)
    chunks = zip(*(torch.split(values, rows) for values in (quants, *heads)), strict=True)
    arrange = partial(_pack_panels, bits=bits, num_blocks=padded_blocks)
    data = torch.cat([arrange(chunk, list(chunk_heads)) for chunk, *chunk_heads in chunks])
    return PackedMatrix(name, data, num_rows, num_columns, padded_rows, padded_columns, is_gated)


def _pack_panels(quants: torch.Tensor, heads: list[torch.Tensor], *, bits: int, num_blocks: int) -> torch.Tensor:
    """Bytes [panels, blocks, bytes of a block] of whole panels of rows."""
    num_panels = len(quants) // PANEL_ROWS
    tiles = quants.view(num_panels, PANEL_ROWS // TILE_ROWS, TILE_ROWS, -1, GROUP // 4, 4)
    quads = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4)  # [panels, groups, 2 tiles, 8 quads, 16 rows * 4]
    parts = [_head_bytes(head, num_panels, num_blocks) for head in heads]
    parts.append(_quant_bytes(quads, bits).reshape(num_panels, num_blocks, -1))
    return torch.cat(parts, dim=-1)


def _head_bytes(head: torch.Tensor, num_panels: int, num_blocks: int) -> torch.Tensor:
    """[panels * 32, blocks * m] as bytes [panels, blocks, m * 32 rows]."""
    values = head.view(num_panels, PANEL_ROWS, num_blocks, -1).permute(0, 2, 3, 1).contiguous()
    return values.view(torch.uint8).flatten(2)


def _quant_bytes(quads: torch.Tensor, bits: int) -> torch.Tensor:
    """[panels, groups, bytes of a group]"""
    if bits == 8:
        return (quads ^ 128).flatten(2)
    nibbles = (quads[..., 0::2, :] & 15) | (quads[..., 1::2, :] & 15) << 4
    planes = [_bit_plane(quads >> bit & 1) for bit in range(4, bits)]
    return torch.cat([nibbles.flatten(2), *planes], dim=-1)


def _bit_plane(ones: torch.Tensor) -> torch.Tensor:
    """Zeros and ones [panels, groups, ...] as bytes [panels, groups, bytes], the first in the lowest bit."""
    values = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return torch.sum(ones.view(*ones.shape[:2], -1, 8) * values, dim=-1, dtype=torch.uint8)
