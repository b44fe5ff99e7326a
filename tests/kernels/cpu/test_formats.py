"""What holds of a linear layer in every format of packed weights, in every instruction set of this machine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_int4 import quantize_int4
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from kernels.cpu.packed import PackedMatrix, pack_bf16
from kernels.cpu.recorded import KINDS, PLAIN
from tests.kernels.cpu.linear_layers import ROWS, TOKENS, linear, random
from tests.kernels.cpu.running import padded, run_once

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")


def pack_as_int8(weight: torch.Tensor, **options: Any) -> PackedMatrix:
    return pack_int8(*quantize_int8(weight), **options)


PACK: dict[str, Callable[..., PackedMatrix]] = {"bf16": pack_bf16, "int8": pack_as_int8, "int4": quantize_int4}
INTEGERS = ["int8", "int4"]

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
every_format = pytest.mark.parametrize("weights", PACK)


def packed(weights: str, *shape: int, is_gated: bool = False) -> PackedMatrix:
    """A random matrix in the format of that name."""
    return PACK[weights](random(*shape, seed=1), is_gated=is_gated)


@every_set
@every_format
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("num_outputs, num_inputs", [(257, 576), (64, 4096)])
def test_a_row_is_the_same_to_the_last_bit_among_any_others(
    instruction_set: str, weights: str, num_outputs: int, num_inputs: int, activation: str | None
) -> None:
    is_gated = activation is not None
    weight = packed(weights, num_outputs * (2 if is_gated else 1), num_inputs, is_gated=is_gated)
    x = random(600, num_inputs)
    together = linear(x, weight, instruction_set, activation=activation, num_threads=2)
    for num_rows in (1, 2, 5, 16, 17, 48, 64, 300):
        for first in (0, 3, 299):
            rows = slice(first, first + num_rows)
            alone = linear(x[rows], weight, instruction_set, activation=activation)
            assert torch.equal(alone, together[rows]), (num_rows, first)


@every_set
@every_format
@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_the_number_of_threads_changes_no_bit(instruction_set: str, weights: str, num_threads: int) -> None:
    weight = packed(weights, 700, 1000)
    for num_rows in (1, 31, 200):
        x = random(num_rows, 1000)
        alone = linear(x, weight, instruction_set)
        assert torch.equal(linear(x, weight, instruction_set, num_threads=num_threads), alone)


@pytest.mark.parametrize("weights", INTEGERS)  # sums of floating-point numbers depend on their order
@pytest.mark.parametrize("num_rows", [5, 50])
@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_all_instruction_sets_agree_to_the_last_bit(
    weights: str, num_rows: int, activation: str | None, out_dtype: torch.dtype
) -> None:
    x, weight = random(num_rows, 1000), packed(weights, 300, 1000, is_gated=activation is not None)
    bias = random(weight.padded_rows, seed=2, dtype=torch.float32)
    first, *others = (
        linear(x, weight, instruction_set, bias=bias, activation=activation, out_dtype=out_dtype)
        for instruction_set in instruction_sets()
    )
    assert all(torch.equal(other, first) for other in others)


@every_set
@pytest.mark.parametrize(
    "weights, odd_one",
    [("bf16", torch.nan), *((weights, odd) for weights in INTEGERS for odd in (torch.nan, torch.inf, -torch.inf))],
)
@pytest.mark.parametrize("num_rows", [4, 24, 70])
def test_a_row_that_cannot_be_computed_is_nan_and_stays_alone(
    instruction_set: str, weights: str, num_rows: int, odd_one: float
) -> None:
    x, weight = random(num_rows, 96), packed(weights, 96, 96)
    spoilt = x.clone()
    spoilt[2, 5] = odd_one
    sound = linear(x, weight, instruction_set)
    others = torch.arange(len(x)) != 2
    for out_dtype in (torch.float32, torch.bfloat16):
        found = linear(spoilt, weight, instruction_set, out_dtype=out_dtype)
        assert found[2].isnan().all()
        assert torch.equal(found[others], sound[others].to(out_dtype))


@every_set
@every_format
@pytest.mark.parametrize("num_rows", [3, 20])
def test_rows_past_the_last_are_not_written(instruction_set: str, weights: str, num_rows: int) -> None:
    weight, x, out = packed(weights, 64, 64), padded(random(num_rows, 64)), padded(torch.zeros(num_rows, 64))
    spare = torch.as_strided(out, (16, 64), (64, 1), num_rows * 64)
    spare.fill_(7.0)
    run_once(
        f"linear_{weight.format}",
        *(TOKENS, x, x.stride(0), weight.data, 64, 64, None, out, out.stride(0), KINDS[out.dtype], PLAIN),
        num_tokens=num_rows,
        instruction_set=instruction_set,
    )
    assert (spare == 7.0).all()


@every_set
@every_format
def test_the_rows_whose_logits_are_asked_for_are_another_number_than_the_tokens(
    instruction_set: str, weights: str
) -> None:
    weight, x = packed(weights, 64, 64), random(40, 64)
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
