"""Linear layers over packed bfloat16 weights, and rows of them, in every instruction set of this machine."""

import pytest
import torch

from kernels import reference
from kernels.cpu.library import instruction_sets, library
from kernels.cpu.packed import pack_bf16
from tests.kernels.cpu.linear_layers import ACTIVATE, assert_close, embedding, linear, random

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
# Rows, outputs, inputs: none, all and some of them multiples of a tile, a block of rows, a panel.
SHAPES = [
    (1, 257, 63),
    (1, 64, 64),
    (5, 1, 1),
    (16, 192, 576),
    (17, 100, 257),
    (33, 65, 130),
    (64, 128, 32),
    (300, 96, 200),
    (40, 65, 1088),  # its columns in three chunks that are not of one size
]
MANY_INPUTS = (600, 64, 4096)  # so many that the rows do not stay in a cache together


@every_set
@pytest.mark.parametrize("num_rows, num_outputs, num_inputs", [*SHAPES, MANY_INPUTS])
def test_a_linear_layer_is_the_matrix_product(
    instruction_set: str, num_rows: int, num_outputs: int, num_inputs: int
) -> None:
    x, weight = random(num_rows, num_inputs), random(num_outputs, num_inputs, seed=1)
    found = linear(x, pack_bf16(weight), instruction_set)
    assert_close(found, (x.double() @ weight.double().T).float(), 1e-4)


@every_set
def test_a_bias_is_added_before_the_result_is_rounded(instruction_set: str) -> None:
    x, weight, bias = random(19, 70), random(100, 70, seed=1), random(128, seed=2, dtype=torch.float32)
    found = linear(x, pack_bf16(weight), instruction_set, bias=bias, out_dtype=torch.bfloat16)
    expected = reference.linear(x.float(), weight.float(), bias[:100])
    assert found.dtype == torch.bfloat16
    assert_close(found, expected, 2**-8)
    exact = linear(x, pack_bf16(weight), instruction_set, bias=bias)
    assert torch.equal(found, exact.to(torch.bfloat16))  # to the nearest, and to the even one between two


@every_set
@pytest.mark.parametrize("out_dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("num_rows, num_outputs, num_inputs", SHAPES)
def test_gates_are_activated_and_multiply_what_they_gate(
    instruction_set: str,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    activation: str,
    out_dtype: torch.dtype,
    tolerance: float,
) -> None:
    x, weight = random(num_rows, num_inputs), random(2 * num_outputs, num_inputs, seed=1)
    packed = pack_bf16(weight, is_gated=True)
    found = linear(x, packed, instruction_set, activation=activation, out_dtype=out_dtype)
    expected = ACTIVATE[activation](reference.linear(x.float(), weight.float()))
    assert_close(found, expected, tolerance, floor=1e-6)


@every_set
@pytest.mark.parametrize("gate", [-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates_far_from_zero_are_as_exact_as_those_near_it(instruction_set: str, gate: float, activation: str) -> None:
    x, weight = torch.tensor([[1.0]]).bfloat16(), torch.tensor([[gate], [1.0]]).bfloat16()
    found = linear(x, pack_bf16(weight, is_gated=True), instruction_set, activation=activation)
    torch.testing.assert_close(found, ACTIVATE[activation](weight.float().T), rtol=1e-5, atol=1e-30)


@every_set
@pytest.mark.parametrize("scale", [1.0, 24.0])
@pytest.mark.parametrize("vocab_size, hidden", [(257, 100), (64, 64), (1000, 576)])
def test_an_embedding_is_a_row_of_the_same_packed_weight(
    instruction_set: str, vocab_size: int, hidden: int, scale: float
) -> None:
    weight = random(vocab_size, hidden)
    packed = pack_bf16(weight)
    ids = [0, vocab_size - 1, 17, 17, vocab_size // 2]
    found = embedding(ids, packed, instruction_set, scale=scale, num_threads=2)
    assert torch.equal(found, weight[ids].float() * scale)


def test_packing_keeps_the_shape_it_was_given_beside_the_padded_one() -> None:
    weight = random(257, 100)
    packed = pack_bf16(weight)
    assert (packed.num_rows, packed.num_columns) == (257, 100)
    assert (packed.padded_rows, packed.padded_columns) == (320, 128)
    assert packed.data.shape == (5, 2, 4, 2, 16, 16, 2) and packed.data.is_contiguous()
    assert torch.equal(packed.data[1, 1, 2, 1, 3, 5], weight[64 + 32 + 16 + 5, 64 + 6 : 64 + 8])
    last = packed.data[4, 0, 3, 0, :, 0]  # row 256, columns from 96 on
    assert torch.equal(last[1], weight[256, 98:]) and not last[2:].any()


def test_gates_and_what_they_gate_lie_in_runs_of_16() -> None:
    weight = torch.arange(2 * 40, dtype=torch.float32)[:, None] + 1  # gates 1 to 40, others 41 to 80
    packed = pack_bf16(weight, is_gated=True)
    assert (packed.num_rows, packed.padded_rows) == (80, 128)
    rows = packed.data[:, :, 0, :, 0, :, 0].flatten().tolist()
    assert rows[:16] == list(range(1, 17)) and rows[16:32] == list(range(41, 57))
    assert rows[32:48] == list(range(17, 33)) and rows[48:64] == list(range(57, 73))
    assert rows[64:72] == list(range(33, 41)) and not any(rows[72:80])
    assert rows[80:88] == list(range(73, 81)) and not any(rows[88:])
