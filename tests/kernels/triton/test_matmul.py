"""Linear layers over int8 and int4 weights in Triton are the reference's."""

import pytest
import torch

from kernels import reference_quantized as reference
from kernels.triton import matmul_int4, matmul_int8, quantize
from tests.kernels.triton.closeness import DTYPES, assert_as_close


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 65), (5, 96), (3, 257), (2, 1000)])
def test_rows_are_rounded_to_the_nearest_of_255_steps(num_rows: int, dim: int, dtype: torch.dtype) -> None:
    x = random(num_rows, dim).to(dtype)
    quants, scales = quantize.quantize_rows(x)
    expected, expected_scales = reference.quantize_rows(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(quants, expected)
    assert ((quants * scales[:, None] - x.float()).abs() <= scales[:, None] * 0.501).all()


def test_half_a_step_is_rounded_to_the_even_one() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5]])
    assert quantize.quantize_rows(x)[0].tolist() == [[127, 0, 2, 0, -2]]


def test_row_of_zeros_has_scale_zero_and_a_row_that_is_not_finite_scales_by_nan() -> None:
    x = torch.ones(4, 65)
    x[0], x[1, 3], x[2, 64] = 1e-35, torch.nan, -torch.inf
    quants, scales = quantize.quantize_rows(x)
    expected, expected_scales = reference.quantize_rows(x)
    assert torch.equal(quants, expected)
    assert torch.equal(scales.isnan(), torch.tensor([False, True, True, False]))
    torch.testing.assert_close(scales, expected_scales, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize(("num_rows", "num_columns", "num_outputs"), [(1, 257, 65), (5, 96, 130), (70, 1000, 96)])
def test_int8_weights_give_the_references_results(
    num_rows: int, num_columns: int, num_outputs: int, num_splits: int | None, dtype: torch.dtype
) -> None:
    x, weight = random(num_rows, num_columns).to(dtype), random_integers(-127, 128, num_outputs, num_columns)
    scales, bias = random(num_outputs, seed=1).abs() / 100, random(num_outputs, seed=2).to(dtype)
    weight = weight.to(torch.int8)
    exact = reference.int8_linear(x, weight, scales, bias, out_dtype=torch.float32)
    theirs = reference.int8_linear(x, weight, scales, bias)
    ours = matmul_int8.int8_linear(x, weight, scales, bias, num_splits=num_splits)
    assert_as_close(ours, theirs, exact)


def test_sums_of_int8_products_are_exact_beyond_what_fp32_counts() -> None:
    x, weight = torch.full((1, 4096), 127.0), torch.full((65, 4096), 127, dtype=torch.int8)
    x[0, 0], weight[:, 0] = 1.0, 1
    ours = matmul_int8.int8_linear(x, weight, torch.ones(65), num_splits=1)
    assert ours.double()[0, 0] == float(torch.tensor(127.0**2 * 4095 + 1, dtype=torch.float32))


def test_row_of_int8_is_the_same_in_any_batch_and_split() -> None:
    x, weight = random(40, 600), random_integers(-127, 128, 65, 600).to(torch.int8)
    scales = torch.ones(65)
    together = matmul_int8.int8_linear(x, weight, scales, num_splits=1)
    assert torch.equal(matmul_int8.int8_linear(x[7:8], weight, scales, num_splits=2), together[7:8])


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_packing_is_undone(group: int) -> None:
    quants = random_integers(0, 16, 5, 256).to(torch.uint8)
    packed = reference.pack_int4(quants, group)
    assert packed.shape == (5, 128) and packed[0, 0] == quants[0, 0] | quants[0, group // 2] << 4
    assert torch.equal(reference.unpack_int4(packed, group), quants)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("num_splits", [None, 1])
@pytest.mark.parametrize(
    ("num_rows", "num_columns", "num_outputs", "group"),
    [(1, 96, 65, 32), (5, 288, 130, 32), (70, 512, 96, 128), (17, 192, 257, 64)],
)
def test_int4_weights_give_the_references_results(
    num_rows: int,
    num_columns: int,
    num_outputs: int,
    group: int,
    num_splits: int | None,
    has_zeros: bool,
    dtype: torch.dtype,
) -> None:
    x = random(num_rows, num_columns).to(dtype)
    packed = reference.pack_int4(random_integers(0, 16, num_outputs, num_columns).to(torch.uint8), group)
    scales = random(num_outputs, num_columns // group, seed=1).abs().div_(50).half()
    zeros = random_integers(0, 16, *scales.shape).to(torch.uint8) if has_zeros else None
    bias = random(num_outputs, seed=2).to(dtype)
    weight = weight_of(packed, scales, zeros, dtype)
    exact = x.double() @ weight.double().T + bias.double()
    theirs = torch.nn.functional.linear(x, weight, bias)
    ours = matmul_int4.int4_linear(x, packed, scales, zeros, bias, num_splits=num_splits)
    assert_as_close(ours, theirs, exact)


def weight_of(
    packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The whole weight in `dtype`."""
    columns = torch.eye(packed.shape[1] * 2, dtype=dtype)
    return reference.int4_linear(columns, packed, scales, zeros).T.contiguous()


def test_linear_layers_give_another_dtype_when_asked_and_take_no_rows() -> None:
    x, weight = random(2, 96).half(), random_integers(-127, 128, 65, 96).to(torch.int8)
    assert matmul_int8.int8_linear(x, weight, torch.ones(65), out_dtype=torch.float32).dtype == torch.float32
    assert matmul_int8.int8_linear(x[:0], weight, torch.ones(65)).shape == (0, 65)
    packed, scales = torch.zeros(65, 48, dtype=torch.uint8), torch.ones(65, 3)
    assert matmul_int4.int4_linear(x, packed, scales, out_dtype=torch.float32).dtype == torch.float32
    assert matmul_int4.int4_linear(x[:0], packed, scales).shape == (0, 65)
