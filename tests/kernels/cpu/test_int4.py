"""Linear layers in int4 whose groups have a step and a middle in integers, in every instruction set of this machine."""

import gguf
import pytest
import torch

from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_int4 import Rounded, integers_of, pack_int4, quantize_int4, round_int4
from kernels.cpu.packed import PackedMatrix
from tests.kernels.cpu.linear_layers import ACTIVATE, embedding, exact_linear, linear, random, rounded_to_bfloat16

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
# Rows, outputs, inputs: few and many rows, none, all and some of them multiples of a tile, a pair of tiles, a panel.
SHAPES = [
    (1, 257, 96),
    (1, 64, 64),
    (2, 100, 576),
    (3, 1, 32),
    (4, 192, 1536),
    (5, 31, 32),
    (6, 65, 128),
    (7, 64, 320),
    (8, 128, 576),
    (9, 129, 64),
    (16, 192, 576),
    (17, 100, 256),
    (33, 65, 160),
    (64, 128, 32),
    (300, 96, 192),
    (513, 64, 3072),
]
shapes = pytest.mark.parametrize("num_rows, num_outputs, num_inputs", SHAPES)


def random_int4(num_rows: int, num_columns: int, seed: int = 1) -> Rounded:
    """Every step with every middle that lets all quants stand for a byte, from the lowest to the highest."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, num_columns // 32)
    steps = torch.randint(0, 18, shape, generator=generator)
    lowest, highest = 8 * steps - 128, (127 - 7 * steps).clamp(max=127)
    choice = torch.rand(shape, generator=generator) * 1.2 - 0.1  # the bounds themselves more often
    middles = (lowest + choice.clamp(0, 1) * (highest - lowest)).round()
    quants = torch.randint(0, 16, (num_rows, num_columns), generator=generator)
    scales = torch.rand(num_rows, generator=generator) / 100
    return quants.byte(), steps.byte(), middles.to(torch.int8), scales


def packed(weight: Rounded, *, is_gated: bool = False) -> PackedMatrix:
    return pack_int4(*weight, is_gated=is_gated)


def exact(x: torch.Tensor, weight: Rounded) -> torch.Tensor:
    """What every instruction set computes, to the last bit: what it would of int8."""
    quants, steps, middles, scales = weight
    return exact_linear(x, integers_of(quants, steps, middles), scales)


def values_of(weight: Rounded) -> torch.Tensor:
    quants, steps, middles, scales = weight
    return integers_of(quants, steps, middles).float() * scales[:, None]


@every_set
@shapes
def test_sums_are_exact_and_scaled_once(instruction_set: str, num_rows: int, num_outputs: int, num_inputs: int) -> None:
    x, weight = random(num_rows, num_inputs), random_int4(num_outputs, num_inputs)
    assert torch.equal(linear(x, packed(weight), instruction_set), exact(x, weight))


@every_set
@pytest.mark.parametrize("num_rows", [3, 33])
@pytest.mark.parametrize("quant", [0, 15])
@pytest.mark.parametrize(("step", "middle"), [(16, 0), (17, 8), (1, 120), (15, -8), (1, -120)])
def test_the_largest_sums_do_not_overflow(
    instruction_set: str, num_rows: int, quant: int, step: int, middle: int
) -> None:
    x = torch.ones(num_rows, 8192).bfloat16() * torch.tensor([1.0, -1.0, 0.5]).repeat(11)[:num_rows, None].bfloat16()
    quants = torch.full((2, 8192), quant, dtype=torch.uint8)
    steps, middles = torch.full((2, 256), step).byte(), torch.full((2, 256), middle).to(torch.int8)
    weight = (quants, steps, middles, torch.ones(2))
    assert torch.equal(linear(x, packed(weight), instruction_set), exact(x, weight))


@every_set
@pytest.mark.parametrize("num_rows", [2, 19])
def test_a_bias_is_added_before_the_result_is_rounded(instruction_set: str, num_rows: int) -> None:
    x, weight, bias = random(num_rows, 96), random_int4(100, 96), random(128, seed=2, dtype=torch.float32)
    found = linear(x, packed(weight), instruction_set, bias=bias)
    assert torch.equal(found, exact(x, weight) + bias[:100])
    rounded = linear(x, packed(weight), instruction_set, bias=bias, out_dtype=torch.bfloat16)
    assert torch.equal(rounded, rounded_to_bfloat16(found))


@every_set
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@shapes
def test_gates_are_activated_and_multiply_what_they_gate(
    instruction_set: str, num_rows: int, num_outputs: int, num_inputs: int, activation: str
) -> None:
    x, weight = random(num_rows, num_inputs), random_int4(2 * num_outputs, num_inputs)
    gated = packed(weight, is_gated=True)
    found = linear(x, gated, instruction_set, activation=activation)
    torch.testing.assert_close(found, ACTIVATE[activation](exact(x, weight)), rtol=1e-5, atol=1e-4)
    rounded = linear(x, gated, instruction_set, activation=activation, out_dtype=torch.bfloat16)
    assert torch.equal(rounded, rounded_to_bfloat16(found))


@every_set
@pytest.mark.parametrize("scale", [1.0, 24.0])
@pytest.mark.parametrize("vocab_size, hidden", [(257, 96), (64, 64), (1000, 576)])
def test_an_embedding_is_a_row_of_the_same_packed_weight(
    instruction_set: str, vocab_size: int, hidden: int, scale: float
) -> None:
    weight = random_int4(vocab_size, hidden)
    ids = [0, vocab_size - 1, 17, 17, vocab_size // 2]
    found = embedding(ids, packed(weight), instruction_set, scale=scale, num_threads=2)
    assert torch.equal(found, values_of(weight)[ids] * scale)


@every_set
@pytest.mark.parametrize(("n", "k"), [(65, 64), (2, 1), (130, 100)])
def test_a_weight_of_any_shape_is_near_what_it_was_made_of(n: int, k: int, instruction_set: str) -> None:
    value = random(n, k, seed=7)
    value[0] = 0
    weight = quantize_int4(value)
    assert (weight.num_rows, weight.num_columns) == (n, k)
    found = embedding(list(range(n)), weight, instruction_set)
    assert not found[0].any()
    assert (found - value).norm() < 0.1 * value.norm()
    x = random(40, k)
    difference = linear(x, weight, instruction_set) - x.float() @ found.T
    assert difference.norm() < 0.015 * (x.float() @ found.T).norm()


def test_it_errs_less_than_a_scale_in_float_for_each_group() -> None:
    value = random(64, 512, seed=7).float() * torch.logspace(-4, 4, 64)[:, None]
    kind = gguf.GGMLQuantizationType.Q4_0
    plain = torch.from_numpy(gguf.dequantize(gguf.quantize(value.numpy(), kind), kind))
    errors, plain_errors = ((each - value).norm(dim=1) for each in (values_of(round_int4(value)), plain))
    assert (errors < plain_errors).all() and (errors / plain_errors).mean() < 0.92


@pytest.mark.parametrize("offset", [0.0, 5.0, -50.0])
@pytest.mark.parametrize("outlier", [1.0, 40.0, -1000.0])
def test_what_quants_stand_for_stays_within_a_byte(offset: float, outlier: float) -> None:
    value = random(200, 96, seed=3).float() + offset
    value[:, 40] = outlier
    quants, steps, middles, scales = round_int4(value)
    wide = (quants.view(200, 3, 32).int() - 8) * steps[..., None].int() + middles[..., None].int()
    assert wide.min() >= -128 and wide.max() <= 127
    assert quants.max() <= 15 and steps.min() >= 1 and steps.max() <= 17
    span = value.unflatten(1, (3, 32)).amax(2) - value.unflatten(1, (3, 32)).amin(2)
    errors = (wide * scales[:, None, None] - value.unflatten(1, (3, 32))).abs().amax(2)
    assert (errors <= span / 15 + 2 * scales[:, None]).all()


def test_rounding_keeps_a_row_of_zeros() -> None:
    weight = torch.zeros(2, 64)
    weight[1] = torch.linspace(-1, 1, 64)
    quants, steps, middles, scales = round_int4(weight)
    assert not integers_of(quants, steps, middles)[0].any() and scales[0] == 0
    torch.testing.assert_close(values_of((quants, steps, middles, scales)), weight, rtol=0, atol=0.05)


def test_a_panel_holds_its_halves_then_its_scales_then_what_the_shift_adds() -> None:
    quants, steps, middles, scales = random_int4(70, 96)
    matrix = pack_int4(quants, steps, middles, scales)
    assert (matrix.format, matrix.num_rows, matrix.num_columns) == ("int4", 70, 96)
    assert (matrix.padded_rows, matrix.padded_columns) == (128, 128)
    assert matrix.data.shape == (2, 36 * 128 + 512) and matrix.data.is_contiguous()
    tiles = matrix.data[:, : 36 * 128].view(2, 2, 2, 2, 576)  # panels, halves, blocks of columns, tiles of rows
    nibbles = tiles[..., :512].view(2, 2, 2, 2, 2, 4, 16, 4)  # groups, pairs of quads, rows, columns
    row = 32 + 16 + 5
    assert torch.equal(nibbles[0, 1, 0, 1, 1, 2, 5] & 15, quants[row, 48:52])
    assert torch.equal(nibbles[0, 1, 0, 1, 1, 2, 5] >> 4, quants[row, 52:56])
    heads = tiles[..., 512:].view(2, 2, 2, 2, 2, 16, 2)
    assert heads[0, 1, 0, 1, 1, 5].view(torch.int8).tolist() == [steps[row, 1], middles[row, 1]]
    assert not heads[:, :, 1, :, 1].any()  # columns from 96 on
    ends = matrix.data[:, 36 * 128 :].view(2, 2, 64, 4)
    found_scales, offsets = ends[:, 0].view(torch.float32).flatten(), ends[:, 1].view(torch.int32).flatten()
    assert torch.equal(found_scales[:70], scales) and not found_scales[70:].any()
    sums = integers_of(quants, steps, middles).sum(dim=1, dtype=torch.int32)
    assert torch.equal(offsets[:70], 128 * sums) and not offsets[70:].any()
