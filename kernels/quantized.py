"""Weights in integers, row by row, as the kernels of a GPU read them. The CPU's are in `kernels.cpu.packed`."""

from dataclasses import dataclass

import torch

from kernels.reference_quantized import MIDDLE_INT4, pack_int4


@dataclass(frozen=True)
class Int8Matrix:
    """scales[:, None] * rows, [out, in]. A linear layer rounds each row of what comes in to int8 too."""

    rows: torch.Tensor  # int8 [out, in], contiguous
    scales: torch.Tensor  # fp32 [out]


@dataclass(frozen=True)
class Int4Matrix:
    """scales * (quants - zeros), [out, in], in groups of 32, 64 or 128 columns. What comes in stays as it is."""

    packed: torch.Tensor  # uint8 [out, in / 2], the quants as `pack_int4` packs them
    scales: torch.Tensor  # of any float dtype, [out, in / group]
    zeros: torch.Tensor | None  # uint8 of that shape; None: each is 8


QuantizedMatrix = Int8Matrix | Int4Matrix


def make_int4(quants: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None) -> Int4Matrix:
    """Of quants uint8 [out, in] from 0 to 15, scales and zeros [out, in / group]. Zeros of 8 throughout are dropped."""
    if zeros is not None:
        zeros = zeros.contiguous() if bool((zeros != MIDDLE_INT4).any()) else None
    return Int4Matrix(pack_int4(quants, quants.shape[1] // scales.shape[1]), scales.contiguous(), zeros)
