"""SiLU and GELU in Triton are the reference's."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from kernels import reference
from kernels.triton import activation
from tests.kernels.triton.closeness import DTYPES, assert_as_close

SHAPES = [(1, 65), (5, 96), (3, 257), (2, 1500)]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "dim"), SHAPES)
@pytest.mark.parametrize(("name", "exact"), [("silu_and_mul", functional.silu), ("gelu_and_mul", gelu)])
def test_activation_is_as_close_as_the_reference(
    name: str, exact: Callable[[torch.Tensor], torch.Tensor], num_rows: int, dim: int, dtype: torch.dtype
) -> None:
    x = torch.randn(num_rows, 2 * dim, generator=torch.Generator().manual_seed(0)).mul_(4).to(dtype)
    gate, up = x.double().chunk(2, dim=1)
    assert_as_close(getattr(activation, name)(x), getattr(reference, name)(x), exact(gate) * up)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul"])
def test_large_gates_pass_and_very_negative_ones_are_closed(name: str) -> None:
    x = torch.tensor([[100.0, -100.0, 0.0, 2.0, 3.0, 5.0]])
    torch.testing.assert_close(getattr(activation, name)(x), torch.tensor([[200.0, 0.0, 0.0]]), rtol=0, atol=1e-30)


def test_rows_may_stand_apart() -> None:
    x = torch.randn(5, 200)[:, :130]
    torch.testing.assert_close(activation.silu_and_mul(x), reference.silu_and_mul(x))
    assert activation.silu_and_mul(x[:0]).shape == (0, 65)
