"""What the tests of linear layers share, whatever the weights' format: random values, one layer run, and closeness."""

import torch

from kernels import reference
from kernels.cpu.packed import PackedMatrix
from kernels.cpu.recorded import EPILOGUES, KINDS, PLAIN
from tests.kernels.cpu.running import padded, run_once

TOKENS, ROWS = 0, 1  # `Extent`
ACTIVATE = {"silu": reference.silu_and_mul, "gelu": reference.gelu_and_mul}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear(
    x: torch.Tensor,
    weight: PackedMatrix,
    instruction_set: str,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
    activation: str | None = None,
    num_threads: int = 1,
) -> torch.Tensor:
    """Of x [n, in], the activated gates times what they gate where there is an `activation`."""
    x = padded(x)
    out = padded(torch.full((len(x), weight.num_rows // (2 if activation else 1)), torch.nan, dtype=out_dtype))
    run_once(
        f"linear_{weight.format}",
        *(TOKENS, x, x.stride(0), weight.data, weight.padded_rows, weight.padded_columns, bias),
        *(out, out.stride(0), KINDS[out_dtype], EPILOGUES[activation] if activation else PLAIN),
        num_tokens=len(x),
        instruction_set=instruction_set,
        num_threads=num_threads,
    )
    return out


def embedding(
    ids: list[int], weight: PackedMatrix, instruction_set: str, *, scale: float = 1.0, num_threads: int = 1
) -> torch.Tensor:
    """Rows `ids` of the weight, times `scale`."""
    out = padded(torch.full((len(ids), weight.num_columns), torch.nan))
    run_once(
        f"embedding_{weight.format}",
        *(weight.data, weight.padded_rows, weight.padded_columns, scale, out, out.stride(0)),
        num_tokens=len(ids),
        input_ids=torch.tensor(ids),
        instruction_set=instruction_set,
        num_threads=num_threads,
    )
    return out


def rounded_to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """To the nearest, of two the even one; what is smaller than any normal number becomes a zero."""
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0 * x, x).to(torch.bfloat16)


def exact_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What every instruction set computes of an int8 weight and its rows' scales, to the last bit."""
    largest = x.float().abs().amax(dim=1, keepdim=True)
    quantized = (x.float() * (torch.tensor(127.0) / largest)).round()
    sums = quantized.double() @ weight.double().T  # whole numbers far below 2^53
    return sums.float() * (largest / 127) * scales


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, *, floor: float = 0.0) -> None:
    """Within `tolerance` of the largest of each row, which bounds what the order of the sums may change, or `floor`."""
    assert found.shape == expected.shape
    scale = expected.double().abs().amax(dim=1, keepdim=True)
    assert ((found.double() - expected.double()).abs() <= tolerance * scale + floor).all()
