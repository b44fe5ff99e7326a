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


def assert_only_rows_of_the_step_are_written(weight: PackedMatrix, num_rows: int, instruction_set: str) -> None:
    """Of a weight [64, 64]: 16 rows of memory after the last of `num_rows` keep what they held."""
    x, out = padded(random(num_rows, 64)), padded(torch.zeros(num_rows, 64))
    spare = torch.as_strided(out, (16, 64), (64, 1), num_rows * 64)
    spare.fill_(7.0)
    run_once(
        f"linear_{weight.format}",
        *(TOKENS, x, x.stride(0), weight.data, 64, 64, None, out, out.stride(0), KINDS[out.dtype], PLAIN),
        num_tokens=num_rows,
        instruction_set=instruction_set,
    )
    assert (spare == 7.0).all()


def assert_rows_may_be_fewer_than_the_tokens(weight: PackedMatrix, instruction_set: str) -> None:
    """Of a weight [64, 64]: logits of 3 rows, in a step of 40 tokens."""
    x = random(40, 64)
    rows, out = padded(x), padded(torch.zeros(40, 64))
    run_once(
        f"linear_{weight.format}",
        *(ROWS, rows, rows.stride(0), weight.data, 64, 64, None, out, out.stride(0), KINDS[out.dtype], PLAIN),
        num_tokens=40,
        rows=torch.arange(3),
        instruction_set=instruction_set,
    )
    assert torch.equal(out[:3], linear(x[:3], weight, instruction_set))
    assert not out[3:].any()


def assert_rows_are_independent(
    weight: PackedMatrix, num_inputs: int, instruction_set: str, *, activation: str | None = None
) -> None:
    """A row has the same bits alone, among some others, and among 600 computed by two threads."""
    x = random(600, num_inputs)
    together = linear(x, weight, instruction_set, activation=activation, num_threads=2)
    for num_rows in (1, 2, 5, 16, 17, 48, 64, 300):
        for first in (0, 3, 299):
            rows = slice(first, first + num_rows)
            alone = linear(x[rows], weight, instruction_set, activation=activation)
            assert torch.equal(alone, together[rows]), (num_rows, first)


def assert_threads_change_no_bit(weight: PackedMatrix, instruction_set: str, num_threads: int) -> None:
    """Of a weight with 1000 inputs."""
    for num_rows in (1, 31, 200):
        x = random(num_rows, 1000)
        alone = linear(x, weight, instruction_set)
        assert torch.equal(linear(x, weight, instruction_set, num_threads=num_threads), alone)


def assert_a_spoilt_row_stays_alone(
    x: torch.Tensor, spoilt: torch.Tensor, weight: PackedMatrix, instruction_set: str
) -> None:
    """`spoilt` is x but for row 2, whose results are all NaN."""
    sound = linear(x, weight, instruction_set)
    others = torch.arange(len(x)) != 2
    for out_dtype in (torch.float32, torch.bfloat16):
        found = linear(spoilt, weight, instruction_set, out_dtype=out_dtype)
        assert found[2].isnan().all()
        assert torch.equal(found[others], sound[others].to(out_dtype))
