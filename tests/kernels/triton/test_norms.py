"""RMSNorm in Triton is the reference's."""

import pytest
import torch

from kernels import reference
from kernels.triton import norms
from tests.kernels.triton.closeness import DTYPES, assert_as_close

EPS = 1e-6
SHAPES = [(1, 65), (5, 96), (3, 257), (2, 1024)]


def make_rows(num_rows: int, dim: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed)).mul_(3).to(dtype)


def exact_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), SHAPES)
def test_norm_of_rows_is_as_close_as_the_reference(num_rows: int, dim: int, dtype: torch.dtype) -> None:
    x, weight = make_rows(num_rows, dim, dtype), make_rows(1, dim, torch.float32, seed=1)[0]
    assert_as_close(norms.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), exact_norm(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), SHAPES)
def test_residual_is_added_before_the_norm_and_returned_with_it(num_rows: int, dim: int, dtype: torch.dtype) -> None:
    x, residual = make_rows(num_rows, dim, dtype), make_rows(num_rows, dim, dtype, seed=2)
    weight = make_rows(1, dim, torch.float32, seed=1)[0]
    before = x.clone(), residual.clone()
    y, total = norms.add_rms_norm(x, residual, weight, EPS)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)
    assert_as_close(y, expected, exact_norm(expected_total, weight))
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


def test_rows_may_stand_apart_and_have_more_than_two_dimensions() -> None:
    wide, weight = make_rows(6, 3 * 96, torch.float32), make_rows(1, 96, torch.float32, seed=1)[0]
    heads = wide.view(6, 3, 96)[:, 1:]
    assert torch.allclose(norms.rms_norm(heads, weight, EPS), reference.rms_norm(heads, weight, EPS), atol=1e-5)
    part = wide[:, 96:192]
    assert torch.allclose(norms.rms_norm(part, weight, EPS), reference.rms_norm(part, weight, EPS), atol=1e-5)


def test_norm_of_no_rows_is_no_rows() -> None:
    assert norms.rms_norm(torch.empty(0, 64), torch.ones(64), EPS).shape == (0, 64)


def test_row_of_zeros_stays_zero_and_bfloat16_is_not_nan() -> None:
    assert torch.equal(norms.rms_norm(torch.zeros(1, 65), torch.ones(65), EPS), torch.zeros(1, 65))
    x = make_rows(2, 96, torch.bfloat16)
    expected = reference.rms_norm(x, torch.ones(96), EPS)
    torch.testing.assert_close(norms.rms_norm(x, torch.ones(96), EPS), expected, rtol=2**-7, atol=0)
