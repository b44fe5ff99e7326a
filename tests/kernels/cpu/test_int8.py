"""Linear layers in int8, weights by row and activations by token, in every instruction set of this machine."""

import pytest
import torch

from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from tests.kernels.cpu.linear_layers import ACTIVATE, embedding, exact_linear, linear, random, rounded_to_bfloat16

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
# Rows, outputs, inputs: none, all and some of them multiples of a tile, a pair of tiles, a panel.
SHAPES = [
    (1, 257, 63),
    (1, 64, 64),
    (5, 1, 1),
    (16, 192, 576),
    (17, 100, 257),
    (33, 65, 130),
    (64, 128, 32),
    (300, 96, 200),
    (513, 64, 3072),
    (40, 65, 1216),  # its columns in two chunks that are not of one size
]
shapes = pytest.mark.parametrize("num_rows, num_outputs, num_inputs", SHAPES)


def random_int8(num_rows: int, num_columns: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight with every value that a byte has, -128 too, and its scales."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (num_rows, num_columns), generator=generator, dtype=torch.int8)
    return weight, torch.rand(num_rows, generator=generator) / 100


@every_set
@shapes
def test_sums_are_exact_and_scaled_once(instruction_set: str, num_rows: int, num_outputs: int, num_inputs: int) -> None:
    x, (weight, scales) = random(num_rows, num_inputs), random_int8(num_outputs, num_inputs)
    found = linear(x, pack_int8(weight, scales), instruction_set)
    assert torch.equal(found, exact_linear(x, weight, scales))


@every_set
def test_the_largest_sums_do_not_overflow(instruction_set: str) -> None:
    x = torch.ones(3, 8192).bfloat16() * torch.tensor([[1.0], [-1.0], [0.5]]).bfloat16()
    weight = torch.tensor([-128, 127], dtype=torch.int8)[:, None].expand(2, 8192)
    found = linear(x, pack_int8(weight, torch.ones(2)), instruction_set)
    assert torch.equal(found, exact_linear(x, weight, torch.ones(2)))


@every_set
def test_a_bias_is_added_before_the_result_is_rounded(instruction_set: str) -> None:
    x, (weight, scales), bias = random(19, 70), random_int8(100, 70), random(128, seed=2, dtype=torch.float32)
    packed = pack_int8(weight, scales)
    found = linear(x, packed, instruction_set, bias=bias)
    assert torch.equal(found, exact_linear(x, weight, scales) + bias[:100])
    rounded = linear(x, packed, instruction_set, bias=bias, out_dtype=torch.bfloat16)
    assert torch.equal(rounded, rounded_to_bfloat16(found))  # to the nearest, and to the even one between two


@every_set
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@shapes
def test_gates_are_activated_and_multiply_what_they_gate(
    instruction_set: str, num_rows: int, num_outputs: int, num_inputs: int, activation: str
) -> None:
    x, (weight, scales) = random(num_rows, num_inputs), random_int8(2 * num_outputs, num_inputs)
    packed = pack_int8(weight, scales, is_gated=True)
    found = linear(x, packed, instruction_set, activation=activation)
    # GELU by PyTorch is less exact far below zero, where it is nearly nothing.
    torch.testing.assert_close(found, ACTIVATE[activation](exact_linear(x, weight, scales)), rtol=1e-5, atol=1e-4)
    rounded = linear(x, packed, instruction_set, activation=activation, out_dtype=torch.bfloat16)
    assert torch.equal(rounded, rounded_to_bfloat16(found))


@every_set
@pytest.mark.parametrize("gate", [-1e4, -90.0, -1.0, 0.0, 1e-3, 1.0, 90.0, 1e4])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates_far_from_zero_are_as_exact_as_those_near_it(instruction_set: str, gate: float, activation: str) -> None:
    x, weight, scales = torch.ones(1, 1).bfloat16(), torch.ones(2, 1, dtype=torch.int8), torch.tensor([gate, 1.0])
    found = linear(x, pack_int8(weight, scales, is_gated=True), instruction_set, activation=activation)
    torch.testing.assert_close(found, ACTIVATE[activation](scales[None]), rtol=1e-5, atol=1e-30)


@every_set
def test_rows_of_zeros_or_nearly_so_are_zeros(instruction_set: str) -> None:
    x = torch.tensor([0.0, 1e-40, -1e-38, 2.0**-101])[:, None].expand(4, 70).bfloat16()
    packed = pack_int8(*random_int8(96, 70))
    assert not linear(x, packed, instruction_set).any()
    gated = pack_int8(*random_int8(96, 70), is_gated=True)
    assert not linear(x, gated, instruction_set, activation="silu").any()


@every_set
def test_results_that_are_no_usual_numbers_are_rounded_alike_everywhere(instruction_set: str) -> None:
    scales = torch.tensor([1e-39, -1e-39, 1e-45, torch.inf, -torch.inf, torch.nan, 3.4e38, 1.18e-38])
    x, weight = torch.ones(1, 1).bfloat16(), torch.ones(8, 1, dtype=torch.int8)
    found = linear(x, pack_int8(weight, scales), instruction_set, out_dtype=torch.bfloat16)
    expected = rounded_to_bfloat16(exact_linear(x, weight, scales))
    assert torch.equal(found.isnan(), expected.isnan())
    is_number = ~expected.isnan()
    assert torch.equal(found[is_number].view(torch.int16), expected[is_number].view(torch.int16))  # zeros' signs too


@every_set
@pytest.mark.parametrize("exponent", [-99, 100])
def test_rows_of_any_other_size_keep_their_precision(instruction_set: str, exponent: int) -> None:
    x, (weight, scales) = random(3, 70), random_int8(96, 70)
    packed = pack_int8(weight, scales)
    found = linear(x * 2.0**exponent, packed, instruction_set)
    torch.testing.assert_close(found / 2.0**exponent, linear(x, packed, instruction_set))


@every_set
@pytest.mark.parametrize("scale", [1.0, 24.0])
@pytest.mark.parametrize("vocab_size, hidden", [(257, 100), (64, 64), (1000, 576)])
def test_an_embedding_is_a_row_of_the_same_packed_weight(
    instruction_set: str, vocab_size: int, hidden: int, scale: float
) -> None:
    weight, scales = random_int8(vocab_size, hidden)
    packed = pack_int8(weight, scales)
    ids = [0, vocab_size - 1, 17, 17, vocab_size // 2]
    found = embedding(ids, packed, instruction_set, scale=scale, num_threads=2)
    assert torch.equal(found, weight[ids].float() * scales[ids, None] * scale)


@every_set
def test_a_quantized_layer_is_near_the_one_it_was_made_of(instruction_set: str) -> None:
    x, weight = random(40, 576), random(200, 576, seed=1)
    found = linear(x, pack_int8(*quantize_int8(weight)), instruction_set)
    expected = x.float() @ weight.float().T
    assert (found - expected).norm() < 0.015 * expected.norm()


def test_quantizing_rounds_to_the_nearest_step_of_each_row() -> None:
    weight = random(20000, 70, dtype=torch.float32) * torch.logspace(-6, 6, 20000)[:, None]
    quantized, scales = quantize_int8(weight)
    assert quantized.dtype == torch.int8 and scales.dtype == torch.float32
    assert (quantized.abs().amax(dim=1) == 127).all()
    error = (quantized * scales[:, None] - weight).abs()
    assert (error <= 0.501 * scales[:, None]).all()


def test_quantizing_keeps_a_row_of_zeros() -> None:
    quantized, scales = quantize_int8(torch.tensor([[0.0, 0.0], [1.0, -2.0]]).bfloat16())
    assert quantized.tolist() == [[0, 0], [64, -127]]
    assert scales[0] == 0


def test_a_panel_holds_its_tiles_then_its_scales_then_what_the_shift_adds() -> None:
    weight, scales = random_int8(70, 100)
    packed = pack_int8(weight, scales)
    assert (packed.format, packed.num_rows, packed.num_columns) == ("int8", 70, 100)
    assert (packed.padded_rows, packed.padded_columns) == (128, 128)
    assert packed.data.shape == (2, 64 * (128 + 8)) and packed.data.is_contiguous()
    tiles = packed.data[:, : 64 * 128].view(torch.int8).view(2, 2, 2, 2, 16, 16, 4)  # panel, half, block, tile
    assert torch.equal(tiles[0, 1, 1, 0, 3, 5], weight[32 + 5, 64 + 12 : 64 + 16])
    assert torch.equal(tiles[0, 0, 1, 1, 3, 5], weight[16 + 5, 64 + 12 : 64 + 16])
    assert torch.equal(tiles[1, 0, 0, 0, 7, 5], weight[69, 28:32])
    assert not tiles[1, 0, :, 1].any() and not tiles[1, 1].any()  # rows from 80 on
    assert not tiles[:, :, 1, :, 9:].any()  # columns from 100 on
    ends = packed.data[:, 64 * 128 :].view(2, 2, 64, 4)
    found_scales, offsets = ends[:, 0].view(torch.float32).flatten(), ends[:, 1].view(torch.int32).flatten()
    assert torch.equal(found_scales[:70], scales) and not found_scales[70:].any()
    assert torch.equal(offsets[:70], 128 * weight.sum(dim=1, dtype=torch.int32)) and not offsets[70:].any()
