"""How a model's matrices are packed for the CPU kernels."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

import torch

from kernels.cpu.pack_int4 import quantize_int4
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from kernels.cpu.packed import PANEL_ROWS, PackedMatrix
from workers.models.stored import StoredWeight, in_floats, joined

AS_STORED = "bf16"  # what a checkpoint has in floats; what it has quantized stays as it is


class Quantize(Protocol):
    """Packs a weight [n, k], which may be one of gates and ups."""

    def __call__(self, weight: torch.Tensor, *, is_gated: bool) -> PackedMatrix: ...


def _quantize_int8(weight: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    return pack_int8(*quantize_int8(weight), is_gated=is_gated)


QUANTIZED: dict[str, Quantize] = {"int8": _quantize_int8, "int4": quantize_int4}


def pack(weights: Sequence[StoredWeight], packing: str, *, is_gated: bool) -> list[PackedMatrix]:
    """One matrix of weights whose rows follow each other, in parts where they are stored in several forms.

    `packing` is AS_STORED or a key of QUANTIZED. Gates and what they gate are always one part.
    """
    if packing == AS_STORED or all(weight.form == packing for weight in weights):
        return [run.packed(is_gated=is_gated) for run in _runs(weights, is_gated)]
    return [QUANTIZED[packing](torch.cat([weight.floats() for weight in weights]), is_gated=is_gated)]


def _runs(weights: Sequence[StoredWeight], is_gated: bool) -> list[StoredWeight]:
    """Those of one form together; all as bf16 when no kernel computes them apart.

    A kernel writes whole panels of columns, so a part must begin where one does. And one kernel alone can multiply
    gates by what they gate.
    """
    runs = [joined(list(run)) for _, run in groupby(weights, key=attrgetter("form"))]
    if all(run.num_rows % PANEL_ROWS == 0 for run in runs[:-1]) and not (is_gated and len(runs) > 1):
        return runs
    return [in_floats(torch.cat([weight.floats().bfloat16() for weight in weights]))]
