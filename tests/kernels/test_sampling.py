"""Sampling operations against plain definitions of what they mean."""

import math

import pytest
import torch

from kernels import sampling
from kernels.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # from Random123's kat_vectors
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_uniforms_are_spread_over_the_unit_interval() -> None:
    values = [uniform(seed, index) for seed in (-(2**63), -1, 0, 2**63 - 1) for index in range(2000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert len(set(values)) == len(values)
    assert abs(sum(values) / len(values) - 0.5) < 0.02
    tenths = [0] * 10
    for value in values:
        tenths[int(10 * value)] += 1
    assert min(tenths) > 700  # 800 expected, standard deviation 27


@pytest.mark.parametrize("vocab_size", [1, 63, 257, 4099, 262_144])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_greedy_takes_the_lowest_id_on_a_tie(num_rows: int, vocab_size: int) -> None:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0))
    tied = torch.arange(num_rows) % vocab_size
    for row in range(num_rows):
        logits[row, tied[row] :: 5] = 9.0
    best, token_ids = sampling.greedy(logits)
    assert token_ids.tolist() == tied.tolist()
    assert best.tolist() == [9.0] * num_rows


@pytest.mark.parametrize("place", [0, 100, 256])
def test_greedy_shows_a_nan_wherever_it_is(place: int) -> None:
    logits = torch.randn(3, 257)
    logits[1, place] = torch.nan
    assert sampling.greedy(logits)[0].isnan().tolist() == [False, True, False]


def restricted(row: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    logits = row.clone()
    sampling.restrict(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    kept = (logits > -torch.inf).nonzero().squeeze(-1)
    assert torch.equal(logits[kept], row[kept])
    return set(kept.tolist())


def kept_by_definition(row: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    order = sorted(range(len(row)), key=lambda i: -row[i].item())
    order = order[: top_k or len(row)]
    weights = {i: math.exp(row[i].item() - row[order[0]].item()) for i in order}
    total, mass, kept = sum(weights.values()), 0.0, set()
    for i in order:
        if mass < top_p * total and weights[i] >= min_p:
            kept.add(i)
        mass += weights[i]
    return kept


@pytest.mark.parametrize("vocab_size", [1, 63, 257, 3001])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"top_k": 1},
        {"top_k": 20},
        {"top_k": 5000},
        {"top_p": 0.3},
        {"top_p": 0.97},
        {"top_p": 1e-9},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.9},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.2},
    ],
)
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_restrict_keeps_what_the_definition_keeps(vocab_size: int, limits: dict[str, float], spread: float) -> None:
    row = spread * torch.randn(vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    assert restricted(row, **limits) == kept_by_definition(row, **limits)


def test_ties_at_the_edge_all_stay() -> None:
    row = torch.tensor([1.0, 2.0, 1.0, 0.0])
    assert restricted(row, top_k=2) == {0, 1, 2}
    assert restricted(torch.zeros(10), top_p=0.25) == set(range(10))
    assert restricted(torch.zeros(10), top_p=0.0) == set(range(10))


def drawn(logits: torch.Tensor, uniform: float, **limits: float) -> int:
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | limits
    return int(sampling.draw(logits, uniform=uniform, **options))


def test_draws_follow_the_distribution_and_never_take_an_excluded_token() -> None:
    logits = torch.tensor([-torch.inf, 0.0, math.log(3.0), -torch.inf])
    counts = [0] * 4
    for index in range(4000):
        counts[drawn(logits, uniform(9, index))] += 1
    assert counts[0] == counts[3] == 0
    assert abs(counts[1] - 1000) < 110  # four standard deviations


def test_temperature_sharpens_and_limits_exclude() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0])
    at_the_end = 1.0 - 2.0**-52
    assert drawn(logits, 0.6) == 0  # 0.665 of the mass
    assert drawn(logits, 0.6, temperature=2.0) == 1  # 0.506 of the mass
    assert drawn(logits, at_the_end) == 2
    assert drawn(logits, at_the_end, top_k=2) == 1
    assert drawn(logits, at_the_end, top_p=0.9) == 1
    assert drawn(logits, at_the_end, min_p=0.5) == 0
    assert logits.tolist() == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("vocab_size", [3, 63, 257, 262_144])
def test_the_extreme_uniforms_take_the_outermost_tokens_that_are_not_excluded(vocab_size: int) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1))
    logits[0] = logits[-1] = -torch.inf
    assert drawn(logits, 0.0) == 1
    assert drawn(logits, 1.0 - 2.0**-52) == vocab_size - 2


def test_penalties_change_a_row_in_place() -> None:
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    sampling.penalize(
        logits[0], torch.tensor([0, 0, 1]), torch.tensor([2, 2]), repetition=2.0, frequency=0.25, presence=0.1
    )
    assert logits.tolist() == [[0.5, -2.0, pytest.approx(0.4), 0.5], [0.0] * 4]


def test_penalties_without_any_output_change_nothing() -> None:
    logits = torch.tensor([1.0, 2.0])
    nothing = torch.tensor([], dtype=torch.int64)
    sampling.penalize(logits, nothing, nothing, repetition=2.0, frequency=1.0, presence=1.0)
    assert logits.tolist() == [1.0, 2.0]


def test_logprobs_are_normalised_and_ordered() -> None:
    logits = torch.randn(257, generator=torch.Generator().manual_seed(2))
    expected = logits.double().log_softmax(-1)
    logprob, top = sampling.logprobs(logits, 5, 4)
    assert logprob == pytest.approx(expected[5].item(), abs=1e-5)
    assert [token_id for token_id, _ in top] == expected.topk(4).indices.tolist()
    assert [value for _, value in top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-5)


def test_a_bias_is_added_in_place_and_ids_outside_the_row_change_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    sampling.add_bias(logits[0], torch.tensor([2, 3, -1, 2**31 - 1, 0]), torch.tensor([0.5, 9.0, 9.0, 9.0, -1.0]))
    assert logits.tolist() == [[0.0, 2.0, 3.5], [4.0, 5.0, 6.0]]


def test_excluded_tokens_are_minus_infinity_and_ids_outside_the_row_change_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    sampling.exclude(logits[0], torch.tensor([1, 1, 3, -1, -3, 2**31 - 1]))
    assert logits.tolist() == [[1.0, -torch.inf, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("vocab_size", [1, 8, 63, 64, 257, 4099])
@pytest.mark.parametrize("num_bytes", [0, 1, 8, 40, 1000])
def test_a_mask_allows_the_tokens_of_its_bits_and_none_beyond_its_end(vocab_size: int, num_bytes: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    mask = torch.randint(0, 256, (num_bytes,), generator=generator).to(torch.uint8)
    row = torch.randn(vocab_size, generator=generator)
    logits = row.clone()
    sampling.allow_only(logits, mask)
    bits = int.from_bytes(bytes(mask.tolist()), "little")
    assert logits.tolist() == [value if bits >> i & 1 else -torch.inf for i, value in enumerate(row.tolist())]


def test_the_likeliest_are_ordered_and_of_equals_the_lowest_id_comes_first() -> None:
    values = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -torch.inf])
    assert sampling.likeliest(values, 4) == [(1, 3.0), (3, 3.0), (2, 2.0), (4, 2.0)]
    assert sampling.likeliest(values, 0) == []
    assert [token_id for token_id, _ in sampling.likeliest(values, 99)] == [1, 3, 2, 4, 5, 0, 6]
