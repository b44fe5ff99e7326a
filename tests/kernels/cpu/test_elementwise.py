"""Norms and copies of rows in every instruction set of this machine."""

import pytest
import torch

from kernels import reference
from kernels.cpu.library import instruction_sets, library
from kernels.cpu.recorded import KINDS
from tests.kernels.cpu.running import padded, run_once

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
every_input = pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
SHAPES = [(1, 1), (1, 576), (2, 63), (5, 64), (3, 257), (64, 576), (17, 1024), (300, 130)]
EPS = 1e-5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight_of(dim: int) -> torch.Tensor:
    return 1.0 + 0.1 * random(dim, seed=9)


def rms_norm(
    x: torch.Tensor, y_dtype: torch.dtype, instruction_set: str, *, num_threads: int = 1, eps: float = EPS
) -> torch.Tensor:
    x, weight = padded(x), weight_of(x.shape[1])
    y = padded(torch.full(x.shape, torch.nan, dtype=y_dtype))
    run_once(
        "rms_norm",
        *(0, x, x.stride(0), KINDS[x.dtype], weight, y, y.stride(0), KINDS[y.dtype], x.shape[1], eps),
        num_tokens=len(x),
        instruction_set=instruction_set,
        num_threads=num_threads,
    )
    return y


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, instruction_set: str, *, num_threads: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    x, residual, weight = padded(x), padded(residual), weight_of(x.shape[1])
    y = padded(torch.full(x.shape, torch.nan, dtype=torch.bfloat16))
    run_once(
        "add_rms_norm",
        *(x, x.stride(0), KINDS[x.dtype], residual, residual.stride(0), weight, y, y.stride(0), x.shape[1], EPS),
        num_tokens=len(x),
        instruction_set=instruction_set,
        num_threads=num_threads,
    )
    return y, residual


def tolerance(dim: int, dtype: torch.dtype) -> float:
    """Relative: the float32 sum of dim / 16 squares in each of 16 lanes, of which the root halves the error; the root,
    the division and two products; and the result's own rounding."""
    roundings = 0.5 * (dim / 16 + 5) + 4
    return roundings * 2.0**-24 + (2.0**-8 if dtype == torch.bfloat16 else 0.0)


def assert_rounded(found: torch.Tensor, exact: torch.Tensor) -> None:
    """`found` is `exact` float64, rounded to its dtype once."""
    torch.testing.assert_close(found.double(), exact, rtol=tolerance(exact.shape[1], found.dtype), atol=0.0)


def exact_norm(x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight_of(x.shape[1]).double()


@every_set
@every_input
@pytest.mark.parametrize("y_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_divided_by_its_root_mean_square_and_rounded_once(
    shape: tuple[int, int], x_dtype: torch.dtype, y_dtype: torch.dtype, instruction_set: str
) -> None:
    x = (3.0 * random(*shape)).to(x_dtype)
    y = rms_norm(x, y_dtype, instruction_set)
    assert_rounded(y, exact_norm(x))
    if y_dtype == x_dtype:
        expected = reference.rms_norm(x, weight_of(shape[1]), EPS)
        torch.testing.assert_close(y, expected, rtol=2 * tolerance(shape[1], y_dtype), atol=0.0)


@every_set
def test_eps_counts_where_a_row_is_small(instruction_set: str) -> None:
    zeros = torch.zeros(1, 100)
    assert rms_norm(zeros, torch.float32, instruction_set).tolist() == zeros.tolist()
    ones = torch.ones(1, 100)
    y = rms_norm(ones, torch.float32, instruction_set, eps=3.0)
    torch.testing.assert_close(y, 0.5 * weight_of(100).unsqueeze(0))


@every_set
@every_input
@pytest.mark.parametrize("shape", SHAPES)
def test_a_residual_is_added_in_place_and_its_norm_given(
    shape: tuple[int, int], x_dtype: torch.dtype, instruction_set: str
) -> None:
    x, before = random(*shape).to(x_dtype), 3.0 * random(*shape, seed=1)
    y, residual = add_rms_norm(x, before, instruction_set)
    assert torch.equal(residual, before + x.float())
    assert_rounded(y, exact_norm(residual))


@every_set
@every_input
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_rows", [2, 5, 16, 17, 64, 300])
def test_a_row_is_bitwise_the_same_alone_and_among_others(
    num_rows: int, num_threads: int, x_dtype: torch.dtype, instruction_set: str
) -> None:
    x, residual = random(num_rows, 577).to(x_dtype), random(num_rows, 577, seed=1)
    together = rms_norm(x, torch.float32, instruction_set, num_threads=num_threads)
    added, total = add_rms_norm(x, residual, instruction_set, num_threads=num_threads)
    for row in {0, 1, num_rows // 2, num_rows - 1}:
        alone = slice(row, row + 1)
        assert torch.equal(rms_norm(x[alone], torch.float32, instruction_set), together[alone])
        added_alone, total_alone = add_rms_norm(x[alone], residual[alone], instruction_set)
        assert torch.equal(added_alone, added[alone]) and torch.equal(total_alone, total[alone])


@every_set
def test_a_nan_stays_in_its_row_and_nothing_is_written_beside_the_result(instruction_set: str) -> None:
    x = random(3, 70)
    x[1, 69] = torch.nan
    y = rms_norm(x, torch.bfloat16, instruction_set)
    assert y.isnan().any(dim=1).tolist() == [False, True, False]
    memory = y.as_strided((4, 128), (128, 1))
    assert memory[:3, 70:].count_nonzero() == 0
    assert bool(memory[3].isnan().all())


@every_set
@pytest.mark.parametrize("dim", [1, 63, 576])
@pytest.mark.parametrize("rows", [[], [0], [4, 4, 0, 2], list(range(299, -1, -1))])
def test_rows_are_copied_in_the_order_asked_for(rows: list[int], dim: int, instruction_set: str) -> None:
    x = padded(random(300, dim).bfloat16())
    y = padded(torch.zeros(len(rows), dim, dtype=torch.bfloat16))
    run_once(
        "select_rows",
        *(x, x.stride(0), y, y.stride(0), dim),
        num_tokens=len(x),
        instruction_set=instruction_set,
        num_threads=2,
        rows=torch.tensor(rows, dtype=torch.int64),
    )
    assert torch.equal(y, x[rows])
