"""The int4 matrices of GPTQ and AWQ: eight quants in an int32, in groups along k with scales and zero points."""

from collections.abc import Callable, Mapping

import torch

from workers.models.errors import BadCheckpoint, UnsupportedModel
from workers.models.stored import StoredWeight

# At which nibble of eight, the lowest first, AWQ has the columns 0 to 7: it packs columns 0, 2, 4, 6, 1, 3, 5, 7.
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
ONES = 0x11111111  # one in each nibble
# What a linear layer has in place of its weight [n, k].
QUANTS = "qweight"  # int32: GPTQ [k / 8, n], AWQ [k, n / 8]
ZEROS = "qzeros"  # int32 [groups, n / 8]
SCALES = "scales"  # [groups, n]
GROUPS = "g_idx"  # int32 [k]: the group of each column; of GPTQ
INT4_TENSORS = (QUANTS, ZEROS, SCALES, GROUPS)


def read_gptq(name: str, tensors: Mapping[str, torch.Tensor]) -> StoredWeight:
    """The first layout of GPTQ, which stores zero points less one, borrowing from the next when that is below zero."""
    return read_gptq_v2(name, {**tensors, ZEROS: _tensor(name, tensors, ZEROS) + ONES})


def read_gptq_v2(name: str, tensors: Mapping[str, torch.Tensor]) -> StoredWeight:
    """The second, which stores them as they are."""
    quants = _nibbles(_tensor(name, tensors, QUANTS))  # [k / 8, n, 8]
    quants = quants.transpose(0, 1).flatten(1)
    scales = _tensor(name, tensors, SCALES).T.contiguous()
    num_columns, num_groups = quants.shape[1], scales.shape[1]
    in_order = torch.arange(num_columns) // (num_columns // num_groups)
    if GROUPS in tensors and not torch.equal(tensors[GROUPS].long(), in_order):
        raise UnsupportedModel(f"groups of columns that do not lie together in {name} (desc_act)")
    zeros = _nibbles(_tensor(name, tensors, ZEROS)).flatten(1)
    return StoredWeight("int4", (quants, scales, zeros.T.contiguous()))


def read_awq(name: str, tensors: Mapping[str, torch.Tensor]) -> StoredWeight:
    """AWQ's layout "gemm"."""
    quants, zeros = (
        _nibbles(_tensor(name, tensors, part))[..., AWQ_NIBBLES].flatten(1).T.contiguous() for part in (QUANTS, ZEROS)
    )
    return StoredWeight("int4", (quants, _tensor(name, tensors, SCALES).T.contiguous(), zeros))


INT4_LAYOUTS: dict[str, Callable[[str, Mapping[str, torch.Tensor]], StoredWeight]] = {
    "gptq": read_gptq,
    "gptq_v2": read_gptq_v2,
    "awq": read_awq,
}


def _tensor(name: str, tensors: Mapping[str, torch.Tensor], part: str) -> torch.Tensor:
    if part not in tensors:
        raise BadCheckpoint(f"no tensor {part} of {name}")
    return tensors[part]


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """int32 [n, m] as uint8 [n, m, 8], the lowest four bits first."""
    data = packed.contiguous().view(torch.uint8).view(*packed.shape, 4)
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(2)
