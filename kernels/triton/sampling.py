"""Tokens from logits. A row is cut into chunks, so that one row alone keeps the whole device busy.

Drawing inverts the distribution: chunks report their mass in fp64, the one in which the number falls is searched.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.draw import Draw
from kernels.triton.restrict import NUM_FACTS, find_floors

CHUNK = 4096


@triton.jit
def _best(values, token_ids, is_inside):
    """(largest, its lowest id) of a block, or (NaN, the first id that has one)."""
    none: tl.constexpr = 2147483647
    nan_id = tl.min(tl.where(is_inside & (values != values), token_ids, none), axis=0)
    best = tl.max(tl.where(is_inside & (values == values), values, float("-inf")), axis=0)
    best_id = tl.min(tl.where(is_inside & (values == best), token_ids, none), axis=0)
    return tl.where(nan_id < none, float("nan"), best), tl.where(nan_id < none, nan_id, best_id)


@triton.jit
def _find_best_of_chunks(logits_ptr, values_ptr, ids_ptr, stride, vocab_size, num_chunks, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
    is_inside = token_ids < vocab_size
    logits = tl.load(logits_ptr + row * stride + token_ids, mask=is_inside, other=0.0).to(tl.float32)
    value, token_id = _best(logits, token_ids, is_inside)
    tl.store(values_ptr + row * num_chunks + chunk, value)
    tl.store(ids_ptr + row * num_chunks + chunk, token_id)


@triton.jit
def _find_best_of_rows(values_ptr, ids_ptr, best_ptr, best_ids_ptr, num_chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    is_inside = chunks < num_chunks
    values = tl.load(values_ptr + row * num_chunks + chunks, mask=is_inside, other=0.0)
    token_ids = tl.load(ids_ptr + row * num_chunks + chunks, mask=is_inside, other=0)
    value, token_id = _best(values, token_ids, is_inside)
    tl.store(best_ptr + row, value.to(best_ptr.dtype.element_ty))
    tl.store(best_ids_ptr + row, token_id.to(tl.int64))


@triton.jit
def _weigh_chunk(
    logits_ptr, stride, draws_ptr, floors_ptr, draw, chunk, vocab_size, NUM_FACTS: tl.constexpr, CHUNK: tl.constexpr
):
    """(token ids, their masses fp64, the chunk's largest logit): masses relative to the chunk's largest."""
    row = tl.load(draws_ptr + draw * NUM_FACTS).to(tl.int64)
    temperature = tl.load(draws_ptr + draw * NUM_FACTS + 2).to(tl.float32)
    floor = tl.load(floors_ptr + draw)
    token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
    is_inside = token_ids < vocab_size
    logits = tl.load(logits_ptr + row * stride + token_ids, mask=is_inside, other=float("-inf")).to(tl.float32)
    largest = tl.max(logits, axis=0)
    # Where a chunk has nothing but -inf, a difference would be NaN.
    has_mass = (logits > float("-inf")) & (logits >= floor)
    masses = tl.where(has_mass, tl.exp((logits - largest) / temperature), 0.0)
    return token_ids, masses.to(tl.float64), largest


@triton.jit
def _weigh_chunks(
    logits_ptr,
    draws_ptr,
    floors_ptr,
    masses_ptr,
    largest_ptr,
    stride,
    vocab_size,
    num_chunks,
    NUM_FACTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    draw, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, masses, largest = _weigh_chunk(
        logits_ptr, stride, draws_ptr, floors_ptr, draw, chunk, vocab_size, NUM_FACTS, CHUNK
    )
    tl.store(masses_ptr + draw * num_chunks + chunk, tl.sum(masses, axis=0))
    tl.store(largest_ptr + draw * num_chunks + chunk, largest)


@triton.jit
def _invert(masses, target, indices, is_inside):
    """(index, mass before it): the first where the running sum passes `target`, or the last with a mass if none does.

    A tree adds in another order than the total was added, so that the last sum may end a rounding below it.
    """
    none: tl.constexpr = 2147483647
    sums = tl.cumsum(masses, axis=0)
    has_mass = is_inside & (masses > 0.0)
    passing = tl.min(tl.where(has_mass & (sums > target), indices, none), axis=0)
    last = tl.max(tl.where(has_mass, indices, 0), axis=0)
    index = tl.where(passing < none, passing, last)
    return index, tl.sum(tl.where(indices < index, masses, 0.0), axis=0)


@triton.jit
def _draw_tokens(
    logits_ptr,
    draws_ptr,
    floors_ptr,
    masses_ptr,
    largest_ptr,
    token_ids_ptr,
    stride,
    vocab_size,
    num_chunks,
    NUM_FACTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    draw = tl.program_id(0).to(tl.int64)
    temperature = tl.load(draws_ptr + draw * NUM_FACTS + 2).to(tl.float32)
    uniform = tl.load(draws_ptr + draw * NUM_FACTS + 5)
    chunks = tl.arange(0, CHUNKS)
    is_inside = chunks < num_chunks
    masses = tl.load(masses_ptr + draw * num_chunks + chunks, mask=is_inside, other=0.0)
    largest = tl.load(largest_ptr + draw * num_chunks + chunks, mask=is_inside, other=float("-inf"))
    scales = tl.exp((largest - tl.max(largest, axis=0)) / temperature).to(tl.float64)
    masses = tl.where(masses > 0.0, masses * scales, 0.0)
    target = uniform * tl.sum(masses, axis=0)
    chunk, before = _invert(masses, target, chunks, is_inside)
    scale = tl.sum(tl.where(chunks == chunk, scales, 0.0), axis=0)
    ids, chunk_masses, _ = _weigh_chunk(
        logits_ptr, stride, draws_ptr, floors_ptr, draw, chunk, vocab_size, NUM_FACTS, CHUNK
    )
    token_id, _ = _invert(chunk_masses, (target - before) / scale, ids, ids < vocab_size)
    tl.store(token_ids_ptr + draw, token_id.to(tl.int64))


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [num_rows, vocab_size]: the largest [num_rows] and its token id int64 [num_rows].

    The lowest id wins a tie, and a row with a NaN has NaN as its largest.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "rows are contiguous"
    num_chunks = triton.cdiv(vocab_size, CHUNK)
    values = logits.new_empty(num_rows, num_chunks, dtype=torch.float32)
    ids = logits.new_empty(num_rows, num_chunks, dtype=torch.int32)
    best, best_ids = logits.new_empty(num_rows), logits.new_empty(num_rows, dtype=torch.int64)
    if num_rows > 0:
        _find_best_of_chunks[(num_rows, num_chunks)](
            logits, values, ids, logits.stride(0), vocab_size, num_chunks, CHUNK=CHUNK, num_warps=8
        )
        chunks = triton.next_power_of_2(num_chunks)
        _find_best_of_rows[(num_rows,)](values, ids, best, best_ids, num_chunks, CHUNKS=chunks, num_warps=1)
    return best, best_ids


def draw_many(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """A token id for each draw from logits [num_rows, vocab_size]: what `sampling.draw` gives, but for rounding."""
    if not draws:
        return []
    facts = torch.tensor(draws, dtype=torch.float64).to(logits.device)  # one copy
    token_ids: list[int] = draw_rows(logits, facts, is_restricted=any(draw.is_restricted for draw in draws)).tolist()
    return token_ids


def draw_rows(logits: torch.Tensor, draws: torch.Tensor, *, is_restricted: bool) -> torch.Tensor:
    """Token ids int64 [num_draws] from logits [num_rows, vocab_size]; nothing waits for the device.

    `draws` fp64 [num_draws, 6], contiguous, as `Draw` names their columns; `is_restricted` if one of them may exclude
    tokens.
    """
    num_draws, vocab_size = len(draws), logits.shape[1]
    assert draws.shape == (num_draws, NUM_FACTS) and draws.is_contiguous()
    assert logits.stride(1) == 1, "rows are contiguous"
    token_ids = logits.new_empty(num_draws, dtype=torch.int64)
    if num_draws == 0:
        return token_ids
    num_chunks = triton.cdiv(vocab_size, CHUNK)
    floors = find_floors(logits, draws) if is_restricted else logits.new_full((num_draws,), -torch.inf)
    masses = logits.new_empty(num_draws, num_chunks, dtype=torch.float64)
    largest = logits.new_empty(num_draws, num_chunks, dtype=torch.float32)
    common = {"NUM_FACTS": NUM_FACTS, "CHUNK": CHUNK, "num_warps": 8}
    _weigh_chunks[(num_draws, num_chunks)](
        logits, draws, floors, masses, largest, logits.stride(0), vocab_size, num_chunks, **common
    )
    _draw_tokens[(num_draws,)](
        logits,
        draws,
        floors,
        masses,
        largest,
        token_ids,
        logits.stride(0),
        vocab_size,
        num_chunks,
        CHUNKS=triton.next_power_of_2(num_chunks),
        **common,
    )
    return token_ids
