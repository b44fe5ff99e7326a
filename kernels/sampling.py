"""Choosing tokens from logits, one row at a time.

A row's result therefore cannot depend on its neighbours in the batch, and a row's temporaries stay in the CPU's cache
(a batched float64 running sum over 262,144 tokens took five times as long per row). A row is float32 [vocab_size];
random numbers come from outside (`kernels.philox`). What every row of every step needs, C++ does where it can, and
Triton on a GPU.
"""

import math
from collections.abc import Sequence
from types import ModuleType

import torch

from kernels.cpu import sampling as cpu
from kernels.draw import Draw


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [num_rows, vocab_size]: the largest [num_rows] and its token id int64 [num_rows].

    The lowest id wins a tie, and a row with a NaN has NaN as its largest.
    """
    if (backend := _backend(logits)) is None:
        best = logits.max(dim=-1)
        return best.values, best.indices
    found: tuple[torch.Tensor, torch.Tensor] = backend.greedy(logits)
    return found


def draw_many(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """A token id for each draw from logits [num_rows, vocab_size]: what `draw` makes of its row, but for rounding."""
    if (backend := _backend(logits)) is None:
        return [
            int(draw(logits[row], temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform))
            for row, top_k, temperature, top_p, min_p, uniform in draws
        ]
    token_ids: list[int] = backend.draw_many(logits, draws)
    return token_ids


def draw_rows(logits: torch.Tensor, draws: torch.Tensor, *, is_restricted: bool) -> torch.Tensor:
    """As `draw_many`, with token ids int64 [num_draws] left on the device, which a GPU is not waited for.

    `draws` fp64 [num_draws, 6], contiguous, as `Draw` names their columns; `is_restricted` if one of them may exclude
    tokens.
    """
    if _is_on_gpu(logits):
        from kernels.triton import sampling as gpu

        drawn: torch.Tensor = gpu.draw_rows(logits, draws, is_restricted=is_restricted)
        return drawn
    best, token_ids = greedy(logits)
    is_finite = best.isfinite().tolist()
    known = [Draw(int(row), int(top_k), *others) for row, top_k, *others in draws.tolist()]
    token_ids = token_ids[draws[:, 0].long()]  # of a row that is not finite, which cannot be drawn from
    places = [i for i, each in enumerate(known) if is_finite[each.row]]
    token_ids[places] = torch.tensor(draw_many(logits, [known[i] for i in places]), dtype=torch.int64)
    return token_ids


def draw(
    logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> torch.Tensor:
    """A token id int64 [1] of one row, by inverting its distribution at `uniform`, a multiple of 2**-52 in [0, 1).

    `temperature` is positive; top_k 0, top_p 1 and min_p 0 exclude nothing. Leaves `logits` as it is.
    """
    scaled = (logits - logits.max()) / temperature
    restrict(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    mass = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # [vocab_size]
    # At most (1 - 2**-52) of the total, so below it also when rounded: the token found is one that has a mass.
    return torch.searchsorted(mass, uniform * mass[-1:], right=True)


def restrict(logits: torch.Tensor, *, top_k: int, top_p: float, min_p: float) -> None:
    """Set to -inf, in one row in place, what top-k, then top-p of the rest, then min-p exclude.

    All three keep the tokens from some value upwards, so ties at the edge all stay.
    """
    if 0 < top_k < len(logits):
        edge = logits.topk(top_k).values[-1]
        logits.masked_fill_(logits < edge, -torch.inf)
    if top_p < 1.0:
        probabilities = logits.softmax(dim=-1)
        logits.masked_fill_(probabilities < _nucleus_edge(probabilities, top_p), -torch.inf)
    if min_p > 0.0:
        logits.masked_fill_(logits < logits.max() + math.log(min_p), -torch.inf)


def add_bias(logits: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor) -> None:
    """Add to one row in place: `bias` float32 [num_ids] to the tokens int64 [num_ids], each there once.

    An id outside the row changes nothing.
    """
    is_inside = (token_ids >= 0) & (token_ids < len(logits))
    logits[token_ids[is_inside]] += bias[is_inside]


def exclude(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Set tokens, int64 [num_ids], to -inf in one row in place. An id outside the row changes nothing."""
    is_inside = (token_ids >= 0) & (token_ids < len(logits))
    logits[token_ids[is_inside]] = -torch.inf


def allow_only(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set all but the allowed tokens to -inf in one row in place.

    `mask` is uint8 [num_bytes], a bit per token, the lowest one first; tokens beyond its end are not allowed.
    """
    bits = torch.arange(8, dtype=torch.uint8, device=mask.device)
    is_allowed = (mask.unsqueeze(-1) >> bits).bitwise_and_(1).flatten()[: len(logits)].bool()
    logits[: len(is_allowed)].masked_fill_(~is_allowed, -torch.inf)
    logits[len(is_allowed) :] = -torch.inf


def penalize(
    logits: torch.Tensor,
    prompt_ids: torch.Tensor,
    output_ids: torch.Tensor,
    *,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    """Make tokens that occurred less likely, in one row in place; the ids are int64 [num_tokens].

    `repetition` divides a positive logit and multiplies a negative one, once per token of prompt and output;
    `frequency` is subtracted per occurrence in the output, `presence` once for any.
    """
    if repetition != 1.0:
        seen_ids = torch.cat((prompt_ids, output_ids))
        seen = logits[seen_ids]
        logits[seen_ids] = torch.where(seen > 0, seen / repetition, seen * repetition)  # Repeats write the same value.
    if frequency != 0.0 or presence != 0.0:
        counts = output_ids.bincount()
        token_ids = counts.nonzero().squeeze(-1)
        logits[token_ids] -= frequency * counts[token_ids] + presence


def logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-probability of `token_id` in one row, and (token id, log-probability) of the `num_top` likeliest."""
    values = logits.log_softmax(dim=-1)
    return float(values[token_id]), likeliest(values, num_top)


def likeliest(values: torch.Tensor, num: int) -> list[tuple[int, float]]:
    """(token id, value) of the `num` largest of one row, or of all when it has fewer; of equals the lowest id first."""
    num = min(num, len(values))
    if num == 0:
        return []
    edge = values.topk(num).values[-1]
    token_ids = (values >= edge).nonzero().squeeze(-1)  # ascending, with all that tie at the edge
    order = values[token_ids].argsort(descending=True, stable=True)[:num]
    token_ids = token_ids[order]
    return list(zip(token_ids.tolist(), values[token_ids].tolist(), strict=True))


def _nucleus_edge(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest probability among the fewest tokens of one row that together have at least `top_p`."""
    # Tokens below (1 - top_p) / vocab_size have less than 1 - top_p together, so the others suffice, and sort fast.
    # Half of that bound, for rounding: no distribution has its likeliest token below it.
    candidates = probabilities[probabilities >= 0.5 * (1.0 - top_p) / len(probabilities)]
    ordered = candidates.sort(descending=True).values
    mass = ordered.cumsum(dim=-1, dtype=torch.float64)
    last = (mass < top_p).sum().clamp_max(len(ordered) - 1)
    return ordered[last]


def _backend(logits: torch.Tensor) -> ModuleType | None:
    if _is_on_gpu(logits):
        from kernels.triton import sampling as gpu  # Triton is there where a GPU is

        return gpu
    return cpu if cpu.takes(logits) else None


def _is_on_gpu(logits: torch.Tensor) -> bool:
    return logits.is_cuda
