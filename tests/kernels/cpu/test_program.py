"""The memory that a program gives its results."""

import pytest
import torch

from kernels.cpu.library import library
from kernels.cpu.program import CACHE_LINE, Program
from kernels.cpu.threads import Threads

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("dim", [1, 64, 576, 1024, 1536])
def test_rows_are_an_odd_number_of_cache_lines_apart_so_that_a_tile_of_them_fits_a_cache(
    dim: int, dtype: torch.dtype
) -> None:
    rows = Program(Threads(1), max_tokens=40, max_rows=4).tokens(dim, dtype)
    lines, rest = divmod(rows.stride(0) * dtype.itemsize, CACHE_LINE)
    assert rows.shape == (40, dim) and rest == 0 and lines % 2 == 1
    assert (lines - 1) * CACHE_LINE <= -(-dim // 64) * 64 * dtype.itemsize, "no more than one line is spent on it"
