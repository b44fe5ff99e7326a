"""What may be drawn from a row on a GPU is what the reference leaves of it."""

import pytest
import torch

from kernels import sampling as reference
from kernels.triton.restrict import find_floors
from kernels.triton.sampling import draw_rows

RESTRICTIONS = [
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (7, 1.0, 0.0),
    (5000, 1.0, 0.0),
    (0, 0.5, 0.0),
    (0, 1e-9, 0.0),
    (0, 0.999, 0.0),
    (0, 1.0, 0.3),
    (0, 1.0, 1.0),
    (20, 0.8, 0.01),
    (3, 0.95, 0.2),
]


def make_logits(num_rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0)).mul_(4)


def facts(row: int, top_k: int, temperature: float, top_p: float, min_p: float, uniform: float = 0.0) -> torch.Tensor:
    return torch.tensor([[row, top_k, temperature, top_p, min_p, uniform]], dtype=torch.float64)


def kept(row: torch.Tensor, top_k: int, temperature: float, top_p: float, min_p: float) -> torch.Tensor:
    """bool [vocab_size]: what the reference leaves."""
    scaled = (row - row.max()) / temperature
    reference.restrict(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    return scaled > -torch.inf


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), RESTRICTIONS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("vocab_size", [1, 63, 257, 8200])  # the last has two blocks
def test_what_is_at_least_the_floor_is_what_the_reference_keeps(
    vocab_size: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = make_logits(2, vocab_size)
    [floor] = find_floors(logits, facts(1, top_k, temperature, top_p, min_p))
    # What float32 cannot tell from the edge of top_p may fall on either side of it.
    least, most = (top_p - 1e-6, top_p + 1e-6) if top_p < 1 else (top_p, top_p)
    ours = logits[1] >= floor
    assert (ours | ~kept(logits[1], top_k, temperature, least, min_p)).all()
    assert (~ours | kept(logits[1], top_k, temperature, most, min_p)).all()


def test_equal_logits_at_the_edge_all_stay_and_excluded_ones_never_return() -> None:
    row = torch.tensor([[3.0, 1.0, 3.0, -torch.inf, 0.0, -0.0, 2.0, 3.0]])
    for top_k, num_kept in ((1, 3), (3, 3), (4, 4), (6, 7), (8, 7)):
        [floor] = find_floors(row, facts(0, top_k, 1.0, 1.0, 0.0))
        assert int(((row >= floor) & (row > -torch.inf)).sum()) == num_kept


def test_draws_of_all_kinds_in_one_batch_are_those_of_each_alone() -> None:
    logits = make_logits(3, 300)
    draws = torch.cat([facts(i % 3, k, 0.7, p, m, 0.05 + 0.09 * i) for i, (k, p, m) in enumerate(RESTRICTIONS)])
    expected = [
        int(reference.draw(logits[int(row)], temperature=t, top_k=int(k), top_p=p, min_p=m, uniform=uniform))
        for row, k, t, p, m, uniform in draws.tolist()
    ]
    assert draw_rows(logits, draws, is_restricted=True).tolist() == expected
    assert [int(draw_rows(logits, draw[None], is_restricted=True)) for draw in draws] == expected
