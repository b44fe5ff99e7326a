"""A weight as a checkpoint stores it, in floats or quantized, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from kernels.cpu.pack_grouped import GGUF_TYPES, from_gguf, pack_scaled
from kernels.cpu.pack_int8 import pack_int8
from kernels.cpu.packed import PackedMatrix, pack_bf16

INT4_MIDDLE = 8  # the zero point of symmetric quants, which take a kernel that reads none


@dataclass(frozen=True)
class StoredWeight:
    """One weight, or some whose rows follow each other. Vectors are floats, and what is said of matrices not theirs."""

    form: str  # of FORMS
    tensors: tuple[torch.Tensor, ...]  # the first dimension of each is the weight's rows

    @property
    def num_rows(self) -> int:
        return len(self.tensors[0])

    def floats(self) -> torch.Tensor:
        """[n, k] in the dtype that is stored; in fp32 when it is quantized."""
        return FORMS[self.form].dequantize(*self.tensors)

    def packed(self, *, is_gated: bool) -> PackedMatrix:
        """For the CPU kernels, without a loss; floats become bf16."""
        return FORMS[self.form].pack(*self.tensors, is_gated=is_gated)

    def rearranged(self, rearrange: Callable[[torch.Tensor], torch.Tensor]) -> "StoredWeight":
        """With its rows in another order."""
        return StoredWeight(self.form, tuple(rearrange(tensor) for tensor in self.tensors))


def in_floats(values: torch.Tensor) -> StoredWeight:
    """A tensor as it is."""
    return StoredWeight("floats", (values,))


def joined(weights: Sequence[StoredWeight]) -> StoredWeight:
    """One below the other; all are of one form."""
    columns = zip(*(weight.tensors for weight in weights), strict=True)
    return StoredWeight(weights[0].form, tuple(torch.cat(tensors) for tensors in columns))


@dataclass(frozen=True)
class Form:
    """Both take the tensors of a StoredWeight."""

    dequantize: Callable[..., torch.Tensor]
    pack: Callable[..., PackedMatrix]


def _int8_floats(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return rows.float() * scales[:, None]


def _int4_floats(quants: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    groups = quants.view(*scales.shape, -1).float() - zeros[..., None].float()
    return (groups * scales[..., None].float()).flatten(1)


def _pack_int4(quants: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    has_zeros = bool((zeros != INT4_MIDDLE).any())
    return pack_scaled(quants, scales, bits=4, zeros=zeros if has_zeros else None, is_gated=is_gated)


def _gguf_floats(name: str, data: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(dequantize(data.numpy(), GGMLQuantizationType[name])).float()


def _pack_gguf(name: str, data: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    block_columns, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    num_rows, row_bytes = data.shape
    return from_gguf(name, data, num_rows, row_bytes // block_bytes * block_columns, is_gated=is_gated)


FORMS = {
    "floats": Form(lambda values: values, pack_bf16),
    "int8": Form(_int8_floats, pack_int8),  # int8 [n, k], scales fp32 [n]
    "int4": Form(_int4_floats, _pack_int4),  # uint8 [n, k], scales [n, groups of k], zero points uint8 of these
} | {
    name: Form(partial(_gguf_floats, name), partial(_pack_gguf, name))  # blocks uint8 [n, bytes of a row]
    for name in GGUF_TYPES
}
