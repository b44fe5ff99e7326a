"""Mixtures of experts over packed weights, in every instruction set of this machine."""

from dataclasses import dataclass

import pytest
import torch

import kernels
from kernels import reference_moe
from kernels.cpu.library import instruction_sets, library
from kernels.cpu.pack_int4 import quantize_int4
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from kernels.cpu.packed import PackedMatrix, pack_bf16
from kernels.cpu.program import Program, recording
from kernels.cpu.threads import Threads
from tests.kernels.cpu.linear_layers import random
from tests.kernels.cpu.running import one_sequence

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
NO_ROWS = torch.zeros(0, dtype=torch.int64)
MAX_TOKENS = 300


def pack(weight: torch.Tensor, form: str, *, is_gated: bool = False) -> PackedMatrix:
    match form:
        case "int8":
            return pack_int8(*quantize_int8(weight), is_gated=is_gated)
        case "int4":
            return quantize_int4(weight, is_gated=is_gated)
    return pack_bf16(weight, is_gated=is_gated)


@dataclass(frozen=True)
class Mixture:
    """Random experts, and what a program computes with them."""

    gate_up: torch.Tensor  # [num_experts, 2 * inner, hidden]
    down: torch.Tensor  # [num_experts, hidden, inner]
    num_chosen: int
    is_normalized: bool = True

    @classmethod
    def random(cls, num_experts: int, num_chosen: int, hidden: int, inner: int) -> "Mixture":
        gate_up = random(num_experts, 2 * inner, hidden, seed=1) / hidden**0.5
        return cls(gate_up, random(num_experts, hidden, inner, seed=2) / inner**0.5, num_chosen)

    def compute(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        instruction_set: str,
        *,
        forms: tuple[str, ...] = ("bf16",),
        num_threads: int = 1,
    ) -> torch.Tensor:
        """Of x bfloat16 [n, hidden] and router logits [n, num_experts]; expert after expert takes the next of `forms`.

        What the program's memory has beyond them is NaN.
        """
        program = Program(Threads(num_threads), max_tokens=MAX_TOKENS, max_rows=1, instruction_set=instruction_set)
        rows = program.tokens(x.shape[1], torch.bfloat16).fill_(torch.nan)
        router_logits = program.tokens(logits.shape[1], torch.float32).fill_(torch.nan)
        rows[: len(x)], router_logits[: len(x)] = x, logits
        each = [forms[expert % len(forms)] for expert in range(len(self.down))]
        gate_up = tuple(pack(*both, is_gated=True) for both in zip(self.gate_up, each, strict=True))
        down = tuple(pack(*both) for both in zip(self.down, each, strict=True))
        with recording(program):
            chosen = kernels.select_experts(router_logits, self.num_chosen, is_normalized=self.is_normalized)
            out = kernels.moe_feed_forward(rows, *chosen, gate_up, down)
        positions = torch.arange(len(x))
        program.run(positions, positions, one_sequence(len(x)), NO_ROWS)
        return out[: len(x)]

    def exact(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        ids, weights = reference_moe.select_experts(logits, self.num_chosen, is_normalized=self.is_normalized)
        return reference_moe.moe_feed_forward(x.float(), ids, weights, self.gate_up.float(), self.down.float())


def choose(
    logits: torch.Tensor, num_chosen: int, *, is_normalized: bool, num_threads: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    program = Program(Threads(num_threads), max_tokens=len(logits), max_rows=1)
    router_logits = program.tokens(logits.shape[1], torch.float32).copy_(logits)
    with recording(program):
        ids, weights = kernels.select_experts(router_logits, num_chosen, is_normalized=is_normalized)
    positions = torch.arange(len(logits))
    program.run(positions, positions, one_sequence(len(logits)), NO_ROWS)
    return ids, weights


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(1, 1), (7, 3), (8, 2), (128, 8), (8, 8)])
def test_choice_and_its_weights_are_the_references(num_experts: int, num_chosen: int, is_normalized: bool) -> None:
    logits = random(257, num_experts).float() * 3
    logits[::5] = logits[::5].round()  # with ties
    logits[1] = 0.0  # nothing but ties
    ids, weights = choose(logits, num_chosen, is_normalized=is_normalized, num_threads=2)
    expected_ids, expected = reference_moe.select_experts(logits, num_chosen, is_normalized=is_normalized)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-30)


def test_logits_far_apart_or_not_finite_choose_real_experts() -> None:
    logits = torch.tensor([[0.0, 200.0, -200.0, 1.0], [torch.nan, 1.0, 2.0, 0.0], [1.0, torch.nan, 0.0, 2.0]])
    ids, weights = choose(logits, 2, is_normalized=True)
    assert ids[0].tolist() == [1, 3] and weights[0].tolist() == [1.0, 0.0]
    for row in (1, 2):
        assert len(set(ids[row].tolist())) == 2 and set(ids[row].tolist()) <= set(range(4))
        assert weights[row].isnan().all()


@every_set
@pytest.mark.parametrize("num_rows", [1, 2, 19, 300])
@pytest.mark.parametrize(
    ("num_experts", "num_chosen", "hidden", "inner"), [(8, 2, 128, 96), (7, 3, 100, 48), (64, 8, 64, 33), (1, 1, 65, 1)]
)
def test_mixture_is_the_weighted_sum_of_the_experts_chosen(
    instruction_set: str, num_rows: int, num_experts: int, num_chosen: int, hidden: int, inner: int
) -> None:
    mixture = Mixture.random(num_experts, num_chosen, hidden, inner)
    x, logits = random(num_rows, hidden, seed=3), random(num_rows, num_experts, seed=4).float()
    found, expected = mixture.compute(x, logits, instruction_set), mixture.exact(x, logits)
    assert (found - expected).abs().max() < 2**-8 * expected.abs().max()  # what the experts' inner rows are rounded to


@every_set
@pytest.mark.parametrize(
    ("forms", "error"), [(("int8",), 0.03), (("int4",), 0.2), (("bf16", "int8"), 0.03), (("int4", "bf16"), 0.2)]
)
def test_experts_have_any_form_or_some_each(instruction_set: str, forms: tuple[str, ...], error: float) -> None:
    mixture, x, logits = Mixture.random(6, 2, 128, 96), random(70, 128, seed=3), random(70, 6, seed=4).float()
    found, expected = mixture.compute(x, logits, instruction_set, forms=forms), mixture.exact(x, logits)
    assert (found - expected).norm() < error * expected.norm()


@every_set
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
def test_a_row_is_the_same_to_the_last_bit_among_any_others(instruction_set: str, form: str) -> None:
    mixture, x, logits = Mixture.random(8, 2, 192, 96), random(300, 192, seed=3), random(300, 8, seed=4).float()
    logits[:, 5] = -torch.inf  # an expert that no row chooses
    logits[100:200, 3] = 9.0  # and one that many do
    together = mixture.compute(x, logits, instruction_set, forms=(form,), num_threads=2)
    for num_rows in (1, 2, 5, 17, 64):
        for first in (0, 3, 150, 300 - num_rows):
            rows = slice(first, first + num_rows)
            alone = mixture.compute(x[rows], logits[rows], instruction_set, forms=(form,))
            assert torch.equal(alone, together[rows]), (num_rows, first)
    shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(9))
    found = mixture.compute(x[shuffled], logits[shuffled], instruction_set, forms=(form,), num_threads=3)
    assert torch.equal(found, together[shuffled])


@every_set
def test_a_row_of_nan_stays_alone(instruction_set: str) -> None:
    mixture, x, logits = Mixture.random(4, 2, 96, 64), random(40, 96, seed=3), random(40, 4, seed=4).float()
    sound = mixture.compute(x, logits, instruction_set)
    x[2], logits[2] = torch.nan, torch.nan
    found = mixture.compute(x, logits, instruction_set)
    others = torch.arange(40) != 2
    assert found[2].isnan().all() and torch.equal(found[others], sound[others])


@every_set
def test_a_later_step_knows_nothing_of_the_one_before(instruction_set: str) -> None:
    mixture = Mixture.random(8, 2, 64, 64)
    program = Program(Threads(1), max_tokens=50, max_rows=1, instruction_set=instruction_set)
    rows, router_logits = program.tokens(64, torch.bfloat16), program.tokens(8, torch.float32)
    gate_up = tuple(pack_bf16(weight, is_gated=True) for weight in mixture.gate_up)
    with recording(program):
        chosen = kernels.select_experts(router_logits, 2, is_normalized=True)
        out = kernels.moe_feed_forward(rows, *chosen, gate_up, tuple(map(pack_bf16, mixture.down)))
    for num_rows in (50, 3, 31):
        x, logits = random(num_rows, 64, seed=num_rows), random(num_rows, 8, seed=num_rows + 1).float()
        rows[:num_rows], router_logits[:num_rows] = x, logits
        positions = torch.arange(num_rows)
        program.run(positions, positions, one_sequence(num_rows), NO_ROWS)
        assert torch.equal(out[:num_rows], mixture.compute(x, logits, instruction_set))


def test_experts_of_a_format_without_a_kernel_are_refused() -> None:
    with pytest.raises(LookupError, match="no kernel linear_q3"):
        Program(Threads(1), max_tokens=1, max_rows=1).calls([("linear_q3", ())])
