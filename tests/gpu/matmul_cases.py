"""Linear layers over int8 and int4 weights, and PyTorch's own in the compute dtype beside them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from kernels import reference_quantized
from kernels.triton import matmul_int4, matmul_int8, quantize
from tests.gpu.measure import Case

if TYPE_CHECKING:
    from tests.gpu.kernel_cases import Sizes

GROUPS = (32, 128)


def matmul_cases(sizes: "Sizes") -> Iterator[Case]:
    num_outputs, num_columns = sizes.weight
    x = torch.randn(max(sizes.linear_rows), num_columns).to(sizes.dtype)
    yield Case(
        "quantize_rows",
        f"{len(x)} x {num_columns}",
        run=lambda: _rebuilt(*quantize.quantize_rows(x)),
        reference=lambda: _rebuilt(*reference_quantized.quantize_rows(x)),
        exact=lambda: _rebuilt(*reference_quantized.quantize_rows(x)),
        timed=lambda: quantize.quantize_rows(x),
        num_bytes=x.nbytes + x.numel(),
        slack=0.01 / torch.finfo(torch.float32).eps,  # a value half-way may go to either side: 1 step of 127
    )
    plain = torch.randn(num_outputs, num_columns).to(sizes.dtype)
    for num_rows in sizes.linear_rows:
        yield _plain_case(x[:num_rows], plain)
        yield _int8_case(x[:num_rows], num_outputs)
        for group in GROUPS:
            yield _int4_case(x[:num_rows], num_outputs, group)


def _rebuilt(quants: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quants * scales[:, None], scales


def _plain_case(x: torch.Tensor, weight: torch.Tensor) -> Case:
    return Case(
        f"torch linear, {str(x.dtype).removeprefix('torch.')}",
        _shape(x, len(weight)),
        run=lambda: (functional.linear(x, weight),),
        reference=lambda: (functional.linear(x, weight),),
        exact=lambda: (x.float() @ weight.float().T,),
        num_bytes=x.nbytes + weight.nbytes + len(x) * len(weight) * x.element_size(),
    )


def _int8_case(x: torch.Tensor, num_outputs: int) -> Case:
    weight = torch.randint(-127, 128, (num_outputs, x.shape[1]), dtype=torch.int8)
    scales = torch.rand(num_outputs) / 100
    return Case(
        "int8_linear",
        _shape(x, num_outputs),
        run=lambda: (matmul_int8.int8_linear(x, weight, scales),),
        reference=lambda: (reference_quantized.int8_linear(x, weight, scales),),
        exact=lambda: (reference_quantized.int8_linear(x, weight, scales, out_dtype=torch.float32),),
        num_bytes=x.nbytes + weight.nbytes + scales.nbytes + len(x) * num_outputs * x.element_size(),
    )


def _int4_case(x: torch.Tensor, num_outputs: int, group: int) -> Case:
    num_columns = x.shape[1]
    packed = torch.randint(0, 256, (num_outputs, num_columns // 2), dtype=torch.uint8)
    scales = torch.rand(num_outputs, num_columns // group).div(50).half()
    zeros = torch.randint(0, 16, scales.shape, dtype=torch.uint8)
    linear = reference_quantized.int4_linear
    return Case(
        f"int4_linear, groups of {group}",
        _shape(x, num_outputs),
        run=lambda: (matmul_int4.int4_linear(x, packed, scales, zeros),),
        reference=lambda: (linear(x, packed, scales, zeros),),
        exact=lambda: (linear(x, packed, scales, zeros, out_dtype=torch.float32),),
        num_bytes=x.nbytes + packed.nbytes + scales.nbytes + zeros.nbytes + len(x) * num_outputs * x.element_size(),
    )


def _shape(x: torch.Tensor, num_outputs: int) -> str:
    return f"{len(x)} x {x.shape[1]} x {num_outputs}"
