"""Rows chosen by Triton are the reference's, to the last bit."""

import pytest
import torch

from kernels import reference
from kernels.triton import embedding
from tests.kernels.triton.closeness import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 25.298])
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 65), (5, 257), (3, 1500)])
def test_tokens_become_rows_times_the_rounded_scale(
    num_rows: int, dim: int, scale: float | None, dtype: torch.dtype
) -> None:
    weight = torch.randn(11, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    token_ids = torch.tensor([10, 0, 3, 3, 7])[:num_rows]
    ours = embedding.embedding(token_ids, weight, scale)
    assert torch.equal(ours, reference.embedding(token_ids, weight, scale))


def test_rows_are_copied_from_a_matrix_whose_rows_stand_apart() -> None:
    x, rows = torch.randn(6, 200)[:, :96], torch.tensor([5, 0])
    assert torch.equal(embedding.select_rows(x, rows), x[rows])
    assert embedding.select_rows(x, rows[:0]).shape == (0, 96)


def test_integers_are_copied_as_they_are() -> None:
    x = torch.arange(130).view(2, 65)
    assert torch.equal(embedding.select_rows(x, torch.tensor([1])), x[1:])
