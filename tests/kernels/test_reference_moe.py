"""Mixtures of experts: right against float64, and every row's bits its own, whoever else chose its experts."""

import pytest
import torch
from torch.nn import functional

import kernels
from kernels import reference_moe

DTYPES = [torch.float32, torch.bfloat16]
NUM_EXPERTS, NUM_CHOSEN, HIDDEN, INNER = 7, 3, 63, 48
IDLE = 4  # an expert that no row ever chooses


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Mixture:
    """Random experts; a row's are chosen by a router that leaves one expert idle."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.router = noise(NUM_EXPERTS, HIDDEN, dtype=dtype, seed=1)
        self.gate_up = noise(NUM_EXPERTS, 2 * INNER, HIDDEN, dtype=dtype, seed=2) / HIDDEN**0.5
        self.down = noise(NUM_EXPERTS, HIDDEN, INNER, dtype=dtype, seed=3) / INNER**0.5

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = kernels.linear(x, self.router)
        logits[:, IDLE] = -torch.inf
        return kernels.select_experts(logits, NUM_CHOSEN, is_normalized=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.moe_feed_forward(x, *self.choose(x), self.gate_up, self.down)


def exact(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, mixture: Mixture) -> torch.Tensor:
    """The definition, a row and an expert at a time, in float64."""
    rows = []
    for row, chosen, shares in zip(x.double(), ids.tolist(), weights.double(), strict=True):
        parts = []
        for expert in chosen:
            gate, up = (mixture.gate_up[expert].double() @ row).chunk(2)
            parts.append(mixture.down[expert].double() @ (functional.silu(gate) * up))
        rows.append(shares @ torch.stack(parts))
    return torch.stack(rows)


@pytest.mark.parametrize("num_rows", [1, 63, 257])
def test_mixture_is_the_weighted_sum_of_the_experts_chosen(num_rows: int) -> None:
    mixture, x = Mixture(torch.float32), noise(num_rows, HIDDEN)
    ids, weights = mixture.choose(x)
    ours = kernels.moe_feed_forward(x, ids, weights, mixture.gate_up, mixture.down)
    assert (ours - exact(x, ids, weights, mixture)).abs().max() < 1e-5


@pytest.mark.parametrize("num_rows", [1, 63, 257])
def test_row_has_its_own_bits_among_however_many(num_rows: int, dtype: torch.dtype) -> None:
    mixture, x = Mixture(dtype), noise(257, HIDDEN, dtype=dtype)
    whole = mixture(x)
    for start in (0, 100, 257 - num_rows):
        assert torch.equal(mixture(x[start : start + num_rows]), whole[start : start + num_rows])
    shuffled = torch.randperm(257, generator=torch.Generator().manual_seed(9))[:num_rows]
    assert torch.equal(mixture(x[shuffled]), whole[shuffled])


def test_row_has_its_own_bits_when_all_choose_alike(dtype: torch.dtype) -> None:
    mixture, x = Mixture(dtype), noise(257, HIDDEN, dtype=dtype)
    ids, weights = mixture.choose(x)
    alone = kernels.moe_feed_forward(x[:1], ids[:1], weights[:1], mixture.gate_up, mixture.down)
    crowd = kernels.moe_feed_forward(x, ids[:1].expand(257, -1), weights, mixture.gate_up, mixture.down)
    assert torch.equal(crowd[:1], alone)


@pytest.mark.parametrize("counts", [[1, 0, 0], [0, 63, 0], [0, 0, 257], [200, 0, 57], [7, 8, 33], [0, 0, 0]])
def test_grouped_linear_gives_each_expert_its_rows(counts: list[int], dtype: torch.dtype) -> None:
    x, weight = noise(sum(counts), 100, dtype=dtype), noise(3, 65, 100, dtype=dtype, seed=1)
    y = reference_moe.grouped_linear(x, weight, torch.tensor(counts).cumsum(0))
    assert (y.shape, y.dtype) == ((sum(counts), 65), dtype)
    for rows, own, matrix in zip(torch.split(x, counts), torch.split(y, counts), weight, strict=True):
        assert torch.equal(own, kernels.linear(rows, matrix))


def test_mixture_of_no_rows_is_empty(dtype: torch.dtype) -> None:
    assert Mixture(dtype)(torch.empty(0, HIDDEN, dtype=dtype)).shape == (0, HIDDEN)


def test_likeliest_experts_are_chosen_with_their_probabilities() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    ids, weights = kernels.select_experts(logits, 2, is_normalized=False)
    assert ids.tolist() == [[1, 3]]
    assert torch.allclose(weights, torch.tensor([[0.4, 0.3]]))
    _, shares = kernels.select_experts(logits, 2, is_normalized=True)
    assert torch.allclose(shares, torch.tensor([[4 / 7, 3 / 7]]))


@pytest.mark.parametrize("num_experts", [8, 128, 1000])
def test_of_equally_likely_experts_those_with_the_lower_ids_are_chosen_in_order(num_experts: int) -> None:
    logits = torch.zeros(3, num_experts)
    logits[1, 5], logits[2, 2:5] = 1.0, -1.0
    ids, _ = kernels.select_experts(logits, 4, is_normalized=True)
    assert ids.tolist() == [[0, 1, 2, 3], [5, 0, 1, 2], [0, 1, 5, 6]]


@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (128, 8), (7, 3)])
def test_choice_of_a_row_does_not_depend_on_the_others(num_experts: int, num_chosen: int, dtype: torch.dtype) -> None:
    logits = noise(257, num_experts, dtype=dtype)
    logits[::5] = logits[::5].round()  # with ties
    whole = kernels.select_experts(logits, num_chosen, is_normalized=True)
    for start, end in ((0, 1), (77, 78), (256, 257), (3, 66), (100, 257)):
        own = kernels.select_experts(logits[start:end], num_chosen, is_normalized=True)
        assert torch.equal(own[0], whole[0][start:end])
        assert torch.equal(own[1], whole[1][start:end])
