"""Linear layers over weights quantized in groups, and rows of these, in every instruction set of this machine."""

import gguf
import numpy as np
import pytest
import torch

from kernels import reference
from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_grouped import from_gguf, pack_q4_k, pack_q6_k, pack_scaled
from kernels.cpu.packed import PackedMatrix
from tests.kernels.cpu.linear_layers import ACTIVATE, assert_close, embedding, linear, random

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
FORMATS = ["q4", "q4_zero", "q4_k", "q5", "q6_k", "q8"]
every_format = pytest.mark.parametrize("name", FORMATS)
SHAPES = [(1, 257, 256), (5, 31, 512), (16, 64, 256), (17, 100, 768), (64, 128, 256), (300, 96, 256)]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integers(low: int, high: int, *shape: int, seed: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator(seed)).to(dtype)


def weight_in(name: str, n: int, k: int, *, is_gated: bool = False) -> tuple[PackedMatrix, torch.Tensor]:
    """A random weight [n, k] in a format, and what it stands for in float64."""
    bits = int(name[1])
    quants = integers(0, 1 << bits, n, k, seed=1)
    if name in ("q4_k", "q6_k"):
        return super_weight(name, quants, is_gated=is_gated)
    scales = (torch.rand(n, k // 32, generator=generator(2)) * 0.01).half()
    zeros = integers(0, 17, n, k // 32, seed=3) if name == "q4_zero" else None
    middle = torch.full((n, k // 32), 1 << bits - 1) if zeros is None else zeros
    value = each(scales, 32) * (quants.double() - each(middle, 32))
    return pack_scaled(quants, scales, bits=bits, zeros=zeros, is_gated=is_gated), value


def super_weight(name: str, quants: torch.Tensor, *, is_gated: bool) -> tuple[PackedMatrix, torch.Tensor]:
    n, k = quants.shape
    scales, mins = (torch.rand(2, n, k // 256, generator=generator(2)) * 1e-3).half()
    if name == "q6_k":
        factors = integers(-128, 128, n, k // 16, seed=3, dtype=torch.int8)
        value = each(scales, 256) * each(factors, 16) * (quants.double() - 32)
        return pack_q6_k(quants, scales, factors, is_gated=is_gated), value
    scale_factors, min_factors = integers(0, 64, 2, n, k // 32, seed=3)
    value = each(scales, 256) * each(scale_factors, 32) * quants.double()
    value -= each(mins, 256) * each(min_factors, 32)
    return pack_q4_k(quants, scales, mins, scale_factors, min_factors, is_gated=is_gated), value


def each(values: torch.Tensor, columns: int) -> torch.Tensor:
    """One value for each of so many columns, in float64."""
    return values.double().repeat_interleave(columns, dim=1)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What the kernels make of bfloat16 x [n, k]: 32 columns share a scale, of which they are multiples up to 127."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).float().unflatten(1, (-1, 32))
    largest = groups.abs().amax(2, keepdim=True)
    inverse = torch.full_like(largest, 127.0) / largest  # rounded once, where `127 / largest` is rounded twice
    quants = torch.where(largest > 0, groups * inverse, 0).round()
    return (quants.double() * (largest / 127).double()).flatten(1)[:, : x.shape[1]]


@every_set
@every_format
@pytest.mark.parametrize(("num_rows", "n", "k"), SHAPES)
def test_linear_is_the_product_of_the_rounded_rows_and_the_weight(
    num_rows: int, n: int, k: int, name: str, instruction_set: str
) -> None:
    x = random(num_rows, k)
    weight, value = weight_in(name, n, k)
    assert_close(linear(x, weight, instruction_set), rounded(x) @ value.T, 1e-5)


@every_set
@every_format
def test_rounding_the_rows_costs_little(name: str, instruction_set: str) -> None:
    x = random(20, 1024)
    weight, value = weight_in(name, 96, 1024)
    expected = reference.linear(x.float(), value.float())
    error = linear(x, weight, instruction_set) - expected
    assert error.norm() < 0.01 * expected.norm()


@every_format
@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
def test_every_instruction_set_gives_the_same_bits(name: str, activation: str | None) -> None:
    x = random(21, 768)
    weight, _ = weight_in(name, 192, 768, is_gated=activation is not None)
    bias = torch.randn(weight.padded_rows, generator=generator(5))
    first, *others = (linear(x, weight, each, bias=bias, activation=activation) for each in instruction_sets())
    for other in others:
        assert torch.equal(other, first)


@every_set
@every_format
@pytest.mark.parametrize("num_rows", [2, 5, 8, 16, 17, 64, 150])
def test_a_row_alone_has_the_bits_that_it_has_among_others(num_rows: int, name: str, instruction_set: str) -> None:
    x = random(num_rows, 256)
    weight, _ = weight_in(name, 128, 256)
    together = linear(x, weight, instruction_set)
    for row in {0, 1, num_rows // 2, num_rows - 1}:
        assert torch.equal(linear(x[row : row + 1], weight, instruction_set)[0], together[row])


@every_set
@every_format
@pytest.mark.parametrize("num_rows", [1, 40, 300])
def test_two_threads_give_the_bits_of_one(num_rows: int, name: str, instruction_set: str) -> None:
    x = random(num_rows, 256)
    weight, _ = weight_in(name, 1100, 256)
    alone = linear(x, weight, instruction_set)
    assert torch.equal(linear(x, weight, instruction_set, num_threads=2), alone)


@every_set
@every_format
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("activation", "num_gates"), [("silu", 96), ("gelu", 70)])
def test_gated_linear_activates_the_gates_and_multiplies(
    activation: str, num_gates: int, out_dtype: torch.dtype, name: str, instruction_set: str
) -> None:
    x = random(19, 256)
    weight, value = weight_in(name, 2 * num_gates, 256, is_gated=True)
    product = rounded(x) @ value.T
    found = linear(x, weight, instruction_set, out_dtype=out_dtype, activation=activation)
    assert_close(found, ACTIVATE[activation](product), 1e-2 if out_dtype == torch.bfloat16 else 2e-5)


@every_set
def test_bias_is_added_and_the_sum_rounded_once(instruction_set: str) -> None:
    x = random(3, 256)
    weight, value = weight_in("q4", 64, 256)
    bias = torch.randn(64, generator=generator(5))
    exact = linear(x, weight, instruction_set, bias=bias)
    assert_close(exact, rounded(x) @ value.T + bias, 1e-5)
    found = linear(x, weight, instruction_set, bias=bias, out_dtype=torch.bfloat16)
    assert torch.equal(found, exact.bfloat16())


@every_set
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row_only(odd: float, instruction_set: str) -> None:
    x = random(20, 256)
    weight, _ = weight_in("q4", 64, 256)
    expected = linear(x, weight, instruction_set)
    x[7, 100] = odd
    found = linear(x, weight, instruction_set)
    assert found[7].isnan().all()
    found[7] = expected[7]
    assert torch.equal(found, expected)


@every_set
def test_groups_of_zeros_and_of_tiny_values_count_as_zero(instruction_set: str) -> None:
    weight, _ = weight_in("q4_k", 64, 256)
    x = torch.zeros(2, 256, dtype=torch.bfloat16)
    x[1, 3] = 1e-38
    assert torch.equal(linear(x, weight, instruction_set), torch.zeros(2, 64))


@every_set
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_saturate(sign: int, instruction_set: str) -> None:
    lowest = torch.zeros(1, 64, dtype=torch.uint8)  # less the zero point, -128
    weight = pack_scaled(lowest, torch.ones(1, 2), bits=8)
    x = torch.full((1, 64), sign, dtype=torch.bfloat16)
    assert linear(x, weight, instruction_set).item() == pytest.approx(-128 * 64 * sign, rel=1e-6)


@every_set
@pytest.mark.parametrize("group", [32, 64, 128])
def test_larger_groups_repeat_their_scale_and_zero_point(group: int, instruction_set: str) -> None:
    quants = integers(0, 16, 40, 384, seed=1)
    scales = torch.rand(40, 384 // group, generator=generator(2)).half()
    zeros = integers(0, 17, 40, 384 // group, seed=3)
    value = each(scales, group) * (quants.double() - each(zeros, group))
    x = random(6, 384)
    found = linear(x, pack_scaled(quants, scales, bits=4, zeros=zeros), instruction_set)
    assert_close(found, rounded(x) @ value.T, 1e-5)


def ggml(tensor_type: str, n: int, k: int) -> np.ndarray:
    """A tensor's bytes [n, bytes of a row]: of random weights where `gguf` quantizes to the type, else random with
    float16 factors of a usual size."""
    kind = gguf.GGMLQuantizationType[tensor_type]
    if tensor_type in ("Q4_0", "Q5_0", "Q8_0"):
        return gguf.quantize(random(n, k, seed=6).float().numpy(), kind)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = integers(0, 256, n * k // 256, size, seed=6).numpy()
    for at in (0, 2) if tensor_type == "Q4_K" else (208,):
        factors = np.random.default_rng(at).uniform(1e-5, 1e-3, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = factors[:, None].view(np.uint8)
    return blocks.reshape(n, -1)


@every_set
@pytest.mark.parametrize("tensor_type", ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_a_gguf_tensor_is_what_gguf_dequantizes_it_to(tensor_type: str, instruction_set: str) -> None:
    raw = ggml(tensor_type, 75, 512)
    value = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[tensor_type]))
    weight = from_gguf(tensor_type, torch.from_numpy(raw), 75, 512)
    assert torch.equal(embedding(list(range(75)), weight, instruction_set), value)
    x = random(9, 512)
    assert_close(linear(x, weight, instruction_set), rounded(x) @ value.double().T, 1e-5)


@every_set
def test_the_smallest_float16_scales_are_kept(instruction_set: str) -> None:
    scales = torch.tensor([[2.0**-24], [-(2.0**-24)], [3 * 2.0**-20], [-65504.0]]).half()
    quants = integers(0, 16, 4, 32, seed=1)
    value = each(scales, 32) * (quants.double() - 8)
    weight = pack_scaled(quants, scales, bits=4)
    assert torch.equal(embedding([0, 1, 2, 3], weight, instruction_set).double(), value)
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    torch.testing.assert_close(linear(x, weight, instruction_set).double(), x.double() @ value.T, rtol=1e-6, atol=0)


@every_set
def test_embedding_takes_rows_in_any_order_and_scales_them(instruction_set: str) -> None:
    weight, value = weight_in("q8", 257, 96)
    found = embedding([256, 0, 31, 32, 256], weight, instruction_set, scale=24.0)
    torch.testing.assert_close(found.double(), value[[256, 0, 31, 32, 256]] * 24.0, rtol=1e-6, atol=0)
