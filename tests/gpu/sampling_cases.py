"""Greedy choices and draws of a full batch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernels.draw import Draw
from kernels.triton import sampling
from kernels.triton.restrict import find_floors
from tests.gpu.measure import Case

if TYPE_CHECKING:
    from tests.gpu.kernel_cases import Sizes

TEMPERATURE = 0.6
TOP_P = 0.9
ROUNDING = 1e-5  # of fp32 masses beside fp64 ones


def sampling_cases(sizes: "Sizes") -> Iterator[Case]:
    logits = torch.randn(sizes.num_seqs, sizes.vocab_size, dtype=torch.float32) * 4
    shape = f"{sizes.num_seqs} x {sizes.vocab_size}"
    expected = logits.amax(1), logits.argmax(1)
    yield Case(
        "greedy",
        shape,
        run=lambda: sampling.greedy(logits),
        reference=lambda: expected,
        exact=lambda: expected,
        num_bytes=logits.nbytes,
    )
    uniforms = torch.rand(sizes.num_seqs, dtype=torch.float64, device="cpu").tolist()
    draws = [Draw(row, 0, TEMPERATURE, 1.0, 0.0, uniform) for row, uniform in enumerate(uniforms)]
    all_right = torch.ones(sizes.num_seqs, dtype=torch.bool)
    yield Case(
        "draw_many, with the copy to the host",
        shape,
        run=lambda: (_are_right(logits, uniforms, sampling.draw_many(logits, draws)),),
        reference=lambda: (all_right,),
        exact=lambda: (all_right,),
        timed=lambda: sampling.draw_many(logits, draws),
        num_bytes=logits.nbytes,
    )
    facts = torch.tensor([draw._replace(top_p=TOP_P) for draw in draws], dtype=torch.float64)
    yield Case(
        f"find_floors, top-p {TOP_P}",
        shape,
        run=lambda: (_are_least(logits, find_floors(logits, facts)),),
        reference=lambda: (all_right,),
        exact=lambda: (all_right,),
        timed=lambda: find_floors(logits, facts),
        num_bytes=logits.nbytes,
    )


def _are_right(logits: torch.Tensor, uniforms: list[float], token_ids: list[int]) -> torch.Tensor:
    """Whether each number falls on its token, bool [num_draws]."""
    device = logits.device
    rows, ids = torch.arange(len(logits), device=device), torch.tensor(token_ids, device=device)
    mass = (logits.double() / TEMPERATURE).softmax(1).cumsum(1)
    after = mass[rows, ids]
    before = torch.where(ids > 0, mass[rows, (ids - 1).clamp(min=0)], 0.0)
    targets = torch.tensor(uniforms, dtype=torch.float64, device=device)
    return (before - ROUNDING <= targets) & (targets <= after + ROUNDING)


def _are_least(logits: torch.Tensor, floors: torch.Tensor) -> torch.Tensor:
    """Whether what is at least each floor has a mass of TOP_P, and what is above it has not, bool [num_rows]."""
    mass = (logits.double() / TEMPERATURE).softmax(1)
    kept, above = ((mass * is_kept).sum(1) for is_kept in (logits >= floors[:, None], logits > floors[:, None]))
    return (kept >= TOP_P - ROUNDING) & (above < TOP_P + ROUNDING)
