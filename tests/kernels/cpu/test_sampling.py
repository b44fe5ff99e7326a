"""Tokens chosen in C++ are those of the reference, in every instruction set of this machine."""

import math
from itertools import product

import pytest
import torch

from kernels import sampling
from kernels.cpu import sampling as cpu
from kernels.cpu.library import instruction_sets, library
from kernels.draw import Draw
from kernels.philox import uniform

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
# Of one vector and its end, a block of the inner loops and its end, many blocks.
VOCAB_SIZES = [1, 2, 15, 16, 17, 63, 257, 1023, 1024, 1025, 4099, 49_152]
AT_THE_END = 1.0 - 2.0**-52


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw(
    row: int = 0,
    *,
    top_k: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: float = 0.5,
) -> Draw:
    return Draw(row, top_k, temperature, top_p, min_p, uniform)


def drawn(logits: torch.Tensor, instruction_set: str, **limits: float) -> int:
    """From one row."""
    [token_id] = cpu.draw_many(logits.unsqueeze(0), [draw(**limits)], instruction_set=instruction_set)  # type: ignore[arg-type]
    return token_id


def reachable(logits: torch.Tensor, instruction_set: str, **limits: float) -> tuple[int, int]:
    """The first and the last token that may be drawn."""
    first, last = (drawn(logits, instruction_set, uniform=edge, **limits) for edge in (0.0, AT_THE_END))
    return first, last


@every_set
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_greedy_is_the_reference_with_the_lowest_id_on_a_tie(
    num_rows: int, vocab_size: int, instruction_set: str
) -> None:
    logits = random(num_rows, vocab_size)
    expected = logits.max(dim=-1)
    best, ids = cpu.greedy(logits, instruction_set=instruction_set)
    assert torch.equal(best, expected.values) and torch.equal(ids, expected.indices)
    first = vocab_size // 2
    logits[:, first:] = 9.0
    best, ids = cpu.greedy(logits, instruction_set=instruction_set)
    assert best.tolist() == [9.0] * num_rows and ids.tolist() == [first] * num_rows


@every_set
@pytest.mark.parametrize("place", [0, 100, 1023, 1024, 2999])
def test_greedy_shows_a_nan_wherever_it_is_and_infinities(place: int, instruction_set: str) -> None:
    logits = random(5, 3000)
    logits[1, place] = torch.nan
    logits[2, place] = torch.inf
    logits[3] = -torch.inf
    best, ids = cpu.greedy(logits, instruction_set=instruction_set)
    assert best.isnan().tolist() == [False, True, False, False, False]
    assert (best[2].item(), best[3].item()) == (math.inf, -math.inf)
    assert ids[1:4].tolist() == [place, place, 0]
    assert torch.equal(best[[0, 4]], logits[[0, 4]].max(dim=-1).values)


@every_set
def test_rows_may_lie_apart(instruction_set: str) -> None:
    memory = torch.full((3, 320), torch.nan)
    logits = memory[:, :257]
    logits.copy_(random(3, 257))
    assert torch.equal(cpu.greedy(logits, instruction_set=instruction_set)[1], logits.argmax(dim=-1))
    draws = [draw(row, uniform=0.3) for row in range(3)]
    assert cpu.draw_many(logits, draws, instruction_set=instruction_set) == reference_of(logits, draws)


def reference_of(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    token_ids = []
    for each in draws:
        row, options = logits[each.row], each._asdict()
        del options["row"]
        token_ids.append(int(sampling.draw(row, **options)))
    return token_ids


def many_draws(seed: int) -> list[Draw]:
    """Draws with every mix of limits, each from a row of its own."""
    limits = product([0.3, 1.0, 2.0], [0, 1, 50, 900, 2000], [1.0, 0.999, 0.9, 0.3, 1e-9, 0.0], [0.0, 0.02, 1.0])
    return [
        draw(row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform(seed, row))
        for row, (temperature, top_k, top_p, min_p) in enumerate(limits)
    ]


def is_at_an_edge(logits: torch.Tensor, each: Draw) -> bool:
    """Whether the uniform, or what top-p asks for, is so near to a sum that rounding decides."""
    scaled = (logits[each.row] - logits[each.row].max()).double() / each.temperature
    probabilities = scaled.softmax(-1).float()
    ordered = probabilities.sort(descending=True).values.double()
    if each.top_k:
        ordered = ordered[: each.top_k] / ordered[: each.top_k].sum()
    if bool(((ordered.cumsum(0) - each.top_p).abs() < 1e-6).any()) and each.top_p < 1.0:
        return True
    options = each._asdict()
    del options["row"]
    row = logits[each.row]
    around = {int(sampling.draw(row, **options | {"uniform": each.uniform + shift})) for shift in (-1e-6, 1e-6)}
    return len(around) > 1


@every_set
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES[:-1])
def test_draws_are_those_of_the_reference(vocab_size: int, spread: float, instruction_set: str) -> None:
    draws = many_draws(vocab_size)
    logits = spread * random(len(draws), vocab_size, seed=vocab_size)
    logits[::7, ::3] = -torch.inf
    logits[::7, -1] = 0.0
    found = cpu.draw_many(logits, draws, instruction_set=instruction_set)
    differing = [i for i, expected in enumerate(reference_of(logits, draws)) if found[i] != expected]
    assert [i for i in differing if not is_at_an_edge(logits, draws[i])] == []
    assert len(differing) <= 2


@every_set
def test_draws_from_a_large_vocabulary_are_those_of_the_reference(instruction_set: str) -> None:
    logits = torch.cat([spread * random(8, 49_157, seed=5) for spread in (0.01, 1.0, 4.0)])
    draws = [
        draw(row, top_k=(0, 50)[row % 2], top_p=(1.0, 0.9)[row // 2 % 2], uniform=uniform(3, row))
        for row in range(len(logits))
    ]
    found = cpu.draw_many(logits, draws, instruction_set=instruction_set)
    differing = [i for i, expected in enumerate(reference_of(logits, draws)) if found[i] != expected]
    assert [i for i in differing if not is_at_an_edge(logits, draws[i])] == []


@every_set
def test_ties_at_the_edge_all_stay(instruction_set: str) -> None:
    row = torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0])
    assert reachable(row, instruction_set, top_k=1) == (2, 2)
    assert reachable(row, instruction_set, top_k=2) == (1, 3)
    assert reachable(row, instruction_set, top_p=0.6) == (1, 3)
    assert reachable(row, instruction_set, min_p=math.exp(-1.0)) == (1, 3)
    for limits in ({"top_k": 1}, {"top_p": 0.25}, {"top_p": 0.0}, {"min_p": 1.0}):
        for vocab_size in (10, 2000, 5000):
            assert reachable(torch.zeros(vocab_size), instruction_set, **limits) == (0, vocab_size - 1)


@every_set
@pytest.mark.parametrize("top_k", [1, 2, 3, 50, 1023, 1024, 1025, 4000])
def test_top_k_finds_its_edge_wherever_the_largest_are(top_k: int, instruction_set: str) -> None:
    ascending = torch.arange(4099) / 4099
    assert reachable(ascending, instruction_set, top_k=top_k) == (4099 - top_k, 4098)
    assert reachable(ascending.flip(0), instruction_set, top_k=top_k) == (0, top_k - 1)
    in_one_group = torch.full((200_000,), -5.0)
    in_one_group[7::1024] = torch.arange(len(in_one_group[7::1024])) / 100.0
    kept = sampling_reference_kept(in_one_group, top_k)
    assert reachable(in_one_group, instruction_set, top_k=top_k) == kept


def sampling_reference_kept(row: torch.Tensor, top_k: int) -> tuple[int, int]:
    restricted = row.clone()
    sampling.restrict(restricted, top_k=top_k, top_p=1.0, min_p=0.0)
    kept = (restricted > -torch.inf).nonzero().squeeze(-1)
    return int(kept[0]), int(kept[-1])


@every_set
@pytest.mark.parametrize("vocab_size", [3, 63, 1024, 1030, 49_152])
def test_the_extreme_uniforms_take_the_outermost_tokens_that_are_not_excluded(
    vocab_size: int, instruction_set: str
) -> None:
    logits = random(vocab_size, seed=1)
    logits[0] = logits[-1] = -torch.inf
    assert reachable(logits, instruction_set) == (1, vocab_size - 2)


@every_set
def test_no_excluded_token_is_drawn_where_sums_in_two_orders_differ(instruction_set: str) -> None:
    logits = 10.0 * random(300, 1000)  # weights so different that their sums are rounded
    logits[:, -3:] = -torch.inf
    draws = [draw(row, uniform=AT_THE_END) for row in range(len(logits))]
    assert max(cpu.draw_many(logits, draws, instruction_set=instruction_set)) < 997


@every_set
def test_draws_follow_the_distribution_and_never_take_an_excluded_token(instruction_set: str) -> None:
    logits = torch.full((1, 2050), -torch.inf)
    logits[0, 3], logits[0, 1500], logits[0, 2048] = 0.0, math.log(3.0), math.log(4.0)
    draws = [draw(uniform=uniform(9, index)) for index in range(8000)]
    token_ids = cpu.draw_many(logits, draws, instruction_set=instruction_set)
    counts = [token_ids.count(token_id) for token_id in (3, 1500, 2048)]
    assert sum(counts) == 8000
    for count, expected in zip(counts, (1000, 3000, 4000), strict=True):
        assert abs(count - expected) < 180  # four standard deviations


@every_set
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_rows", [2, 5, 17, 64])
def test_a_row_is_drawn_the_same_alone_and_among_others(num_rows: int, num_threads: int, instruction_set: str) -> None:
    logits, draws = 2.0 * random(num_rows, 3001), many_draws(1)[: 4 * num_rows : 4]
    draws = [each._replace(row=row) for row, each in enumerate(draws)]
    together = cpu.draw_many(logits, draws, instruction_set=instruction_set, num_threads=num_threads)
    best, best_ids = cpu.greedy(logits, instruction_set=instruction_set, num_threads=num_threads)
    for row, each in enumerate(draws):
        alone = logits[row : row + 1].clone()
        assert cpu.draw_many(alone, [each._replace(row=0)], instruction_set=instruction_set) == [together[row]]
        assert cpu.greedy(alone, instruction_set=instruction_set)[1].item() == best_ids[row].item()


@every_set
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("limits", [{}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}])
def test_a_row_that_is_not_finite_gives_no_token_and_leaves_the_others(
    value: float, limits: dict[str, float], instruction_set: str
) -> None:
    logits = random(3, 3000)
    draws = [draw(row, **limits) for row in range(3)]  # type: ignore[arg-type]
    before = cpu.draw_many(logits, draws, instruction_set=instruction_set)
    logits[1, 1234 if value != -torch.inf else slice(None)] = value
    assert cpu.draw_many(logits, draws, instruction_set=instruction_set) == [before[0], -1, before[2]]


def test_no_draws_give_no_tokens() -> None:
    assert cpu.draw_many(random(2, 10), []) == []


def test_other_than_float32_rows_on_the_cpu_are_left_to_the_reference() -> None:
    logits = random(3, 50)
    assert cpu.takes(logits) and cpu.takes(logits[:, :40])
    for other in (logits.double(), logits.T, logits[:, ::2]):
        assert not cpu.takes(other)
        assert torch.equal(sampling.greedy(other)[1], other.argmax(dim=-1))
        draws = [draw(row, temperature=1e-4) for row in range(len(other))]
        assert sampling.draw_many(other, draws) == other.argmax(dim=-1).tolist()
