"""Tokens that Triton chooses are those that the reference chooses."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import sampling as reference
from kernels.draw import Draw
from kernels.triton import sampling

VOCAB_SIZES = [1, 257, 1000, 9001]  # the last has three chunks


def make_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)).mul_(4)


def plain_draw(row: int, uniform: float, temperature: float = 1.0) -> Draw:
    return Draw(row, 0, temperature, 1.0, 0.0, uniform)


def exact_mass(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return (logits.double() / temperature).softmax(0).cumsum(0)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_greedy_takes_the_largest(num_rows: int, vocab_size: int) -> None:
    logits = make_logits(num_rows, vocab_size)
    best, ids = sampling.greedy(logits)
    assert torch.equal(best, logits.amax(1)) and torch.equal(ids, logits.argmax(1))
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("places", [(3, 4), (256, 255), (8500, 4095, 4096), (0, 9000)])
def test_greedy_takes_the_lowest_id_of_a_tie(places: tuple[int, ...]) -> None:
    logits = make_logits(2, 9001)
    logits[1, list(places)] = 100.0
    best, ids = sampling.greedy(logits)
    assert ids[1] == min(places) and best[1] == 100.0


@pytest.mark.parametrize("places", [(0,), (8999, 5000), (4096,)])
def test_greedy_has_nan_for_a_row_with_one_and_its_first_place(places: tuple[int, ...]) -> None:
    logits = make_logits(3, 9001)
    logits[1, list(places)] = torch.nan
    logits[1, 17] = torch.inf
    best, ids = sampling.greedy(logits)
    assert best[1].isnan() and ids[1] == min(places)
    assert torch.equal(ids[::2], logits[::2].argmax(1))


def test_greedy_of_a_row_of_infinities_is_inside_the_vocabulary() -> None:
    logits = torch.full((2, 257), -torch.inf)
    logits[1] = torch.inf
    best, ids = sampling.greedy(logits)
    assert ids.tolist() == [0, 0] and best.tolist() == [-torch.inf, torch.inf]


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_draws_invert_the_distribution(vocab_size: int, temperature: float) -> None:
    logits = make_logits(5, vocab_size)
    uniforms = [0.0, 0.1, 0.499, 0.73, 0.999, 1.0 - 2.0**-52]
    draws = [plain_draw(row, uniform, temperature) for row in (0, 4, 2) for uniform in uniforms]
    for draw, token_id in zip(draws, sampling.draw_many(logits, draws), strict=True):
        mass = exact_mass(logits[draw.row], draw.temperature)
        before = float(mass[token_id - 1]) if token_id > 0 else 0.0
        assert before - 1e-6 <= draw.uniform <= float(mass[token_id]) + 1e-6


def test_number_on_the_border_of_two_tokens_falls_on_the_second() -> None:
    draws = [plain_draw(0, uniform) for uniform in (0.0, 0.25, 0.5, 0.75)]
    assert sampling.draw_many(torch.zeros(1, 4), draws) == [0, 1, 2, 3]


@triton.jit
def invert_eight(masses_ptr, target, index_ptr, before_ptr):
    indices = tl.arange(0, 8)
    index, before = sampling._invert(tl.load(masses_ptr + indices), target, indices, indices < 6)
    tl.store(index_ptr, index)
    tl.store(before_ptr, before)


@pytest.mark.parametrize(
    ("target", "expected"), [(-1e-9, (1, 0.0)), (0.0, (1, 0.0)), (2.5, (3, 2.0)), (3.0, (3, 2.0)), (9.0, (3, 2.0))]
)
def test_target_that_rounding_put_outside_falls_on_a_token_with_a_mass(
    target: float, expected: tuple[int, float]
) -> None:
    masses = torch.tensor([0, 2, 0, 1, 0, 0, 0, 0], dtype=torch.float64)
    index, before = torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.float64)
    invert_eight[(1,)](masses, target, index, before)
    assert (int(index), float(before)) == expected


def test_draws_agree_with_the_reference() -> None:
    logits = make_logits(1, 1000)
    draws = [plain_draw(0, i / 64) for i in range(64)]
    assert sampling.draw_many(logits, draws) == [
        int(reference.draw(logits[0], temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=draw.uniform))
        for draw in draws
    ]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-52])
@pytest.mark.parametrize("allowed", [(0,), (9000,), (5000,), (4095, 4096)])
def test_token_without_mass_is_never_drawn(allowed: tuple[int, ...], uniform: float) -> None:
    logits = torch.full((2, 9001), -torch.inf)
    logits[1, list(allowed)] = -3.0
    [token_id] = sampling.draw_many(logits, [plain_draw(1, uniform)])
    assert token_id in allowed


def test_draw_does_not_depend_on_its_neighbours() -> None:
    logits = make_logits(5, 9001)
    draws = [plain_draw(row, 0.37, 0.5 + row) for row in range(5)]
    together = sampling.draw_many(logits, draws)
    assert together == [token_id for draw in draws for token_id in sampling.draw_many(logits, [draw])]


def test_restricted_draws_are_the_references_and_keep_their_places() -> None:
    logits = make_logits(2, 257)
    draws = [Draw(0, 3, 1.0, 1.0, 0.0, 0.9), plain_draw(1, 0.3), Draw(1, 0, 1.0, 0.2, 0.0, 0.9)]
    expected = [
        int(reference.draw(logits[row], temperature=temperature, top_k=k, top_p=p, min_p=m, uniform=uniform))
        for row, k, temperature, p, m, uniform in draws
    ]
    assert sampling.draw_many(logits, draws) == expected
    assert sampling.draw_many(logits, []) == []
