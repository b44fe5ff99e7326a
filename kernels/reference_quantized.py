"""Linear layers over quantized weights in plain PyTorch: the truth for the kernels that read them packed.

int8 weights have a scale for each row, and each row of x is rounded to int8 as it comes. int4 weights have a scale, and
maybe a zero, for each group of columns, and x stays as it is.
"""

import torch

LARGEST_INT8 = 127
MIDDLE_INT4 = 8  # the zero of a weight that has none


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [n, k] and scales fp32 [n], whose product is about x [n, k]. A row that is not finite has the scale NaN."""
    wide = x.float()
    largest = wide.abs().amax(dim=1)  # NaN where the row has one
    is_usual = (largest > 2.0**-100) & (largest < torch.inf)
    inverse = torch.where(is_usual, LARGEST_INT8 / largest, 0.0)[:, None]
    quants = torch.where(is_usual[:, None], (wide * inverse).round(), 0.0).to(torch.int8)
    scales = torch.where(is_usual, largest / LARGEST_INT8, 0.0)
    return quants, torch.where(largest < torch.inf, scales, torch.nan)


def int8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`x @ (scales[:, None] * weight).T + bias`, [n, out] in `out_dtype` or x's, of x [n, in] rounded to int8.

    weight int8 [out, in], scales fp32 [out]. The sums of products are exact, at most 131,072 of them.
    """
    quants, row_scales = quantize_rows(x)
    sums = (quants.double() @ weight.double().T).float()
    y = sums * row_scales[:, None] * scales
    return (y if bias is None else y + bias).to(out_dtype or x.dtype)


def pack_int4(quants: torch.Tensor, group: int) -> torch.Tensor:
    """uint8 [out, in / 2] of quants uint8 [out, in] from 0 to 15: in each group of columns its first half in the lower
    nibbles, its second in the upper."""
    lower, upper = quants.view(len(quants), -1, 2, group // 2).unbind(2)
    return (lower | upper << 4).flatten(1)


def unpack_int4(packed: torch.Tensor, group: int) -> torch.Tensor:
    """What `pack_int4` packed: uint8 [out, in]."""
    nibbles = packed.view(len(packed), -1, 1, group // 2)
    return torch.cat((nibbles & 15, nibbles >> 4), dim=2).flatten(1)


def int4_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`x @ (scales * (quants - zeros)).T + bias`, [n, out] in `out_dtype` or x's: x [n, in], the weight in x's dtype.

    `packed` are quants [out, in] as `pack_int4` packs them; scales [out, in / group] of any float dtype, zeros uint8
    of that shape, or 8 each. A group is 32 columns, 64 or 128.
    """
    group = x.shape[1] // scales.shape[1]
    centered = unpack_int4(packed, group).float() - (
        MIDDLE_INT4 if zeros is None else zeros.float().repeat_interleave(group, dim=1)
    )
    weight = (centered * scales.float().repeat_interleave(group, dim=1)).to(x.dtype)
    y = x.float() @ weight.float().T
    return (y if bias is None else y + bias).to(out_dtype or x.dtype)
