"""What top-k, top-p and min-p leave of rows of logits: a floor for each, found by halving the range of fp32 32 times.

Nothing is sorted and nothing as large as the logits is written. The floor is a value that occurs in the row, so equal
logits stay or go together.
"""

import torch
import triton
import triton.language as tl

BLOCK = 8192
NUM_FACTS = 6  # of a `Draw`


@triton.jit
def _key_of(values):
    """int64 in the order of fp32 `values`; the two zeros are neighbours."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _value_of(key):
    """The fp32 number of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _load(row_ptr, first, vocab_size, BLOCK: tl.constexpr):
    token_ids = first + tl.arange(0, BLOCK)
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _total_from(row_ptr, floor, largest, temperature, vocab_size, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """fp64: how many of a row's logits are at least `floor`, or their masses relative to the largest one's."""
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, vocab_size, BLOCK):
        logits = _load(row_ptr, first, vocab_size, BLOCK)
        is_kept = (logits >= floor) & (logits > float("-inf"))
        if IS_COUNT:
            total += tl.where(is_kept, 1.0, 0.0)
        else:
            total += tl.where(is_kept, tl.exp((logits - largest) / temperature), 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _highest_floor(
    row_ptr, lowest, largest, temperature, needed, vocab_size, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """The highest value up to `largest` such that what is at least that adds up to `needed`; `lowest` if none does."""
    low, high = _key_of(lowest), _key_of(largest)
    for _ in range(33):  # as many halvings as the keys have bits, and one to see the two that are left
        middle = (low + high + 1) >> 1
        floor = _value_of(middle)
        total = _total_from(row_ptr, floor, largest, temperature, vocab_size, IS_COUNT, BLOCK)
        is_enough = (total >= needed) & (low < high)
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough | (low >= high), high, middle - 1)
    return _value_of(low)


@triton.jit
def _find_floor(logits_ptr, draws_ptr, floors_ptr, stride, vocab_size, NUM_FACTS: tl.constexpr, BLOCK: tl.constexpr):
    draw = tl.program_id(0).to(tl.int64)
    facts_ptr = draws_ptr + draw * NUM_FACTS
    row_ptr = logits_ptr + tl.load(facts_ptr).to(tl.int64) * stride
    top_k = tl.load(facts_ptr + 1)
    temperature = tl.load(facts_ptr + 2).to(tl.float32)
    top_p, min_p = tl.load(facts_ptr + 3), tl.load(facts_ptr + 4)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab_size, BLOCK):
        best = tl.maximum(best, _load(row_ptr, first, vocab_size, BLOCK))
    largest = tl.max(best, axis=0)
    floor = tl.cast(float("-inf"), tl.float32)
    if top_k > 0:
        floor = _highest_floor(row_ptr, floor, largest, temperature, top_k, vocab_size, True, BLOCK)
    if top_p < 1.0:
        needed = top_p * _total_from(row_ptr, floor, largest, temperature, vocab_size, False, BLOCK)
        floor = _highest_floor(row_ptr, floor, largest, temperature, needed, vocab_size, False, BLOCK)
    if min_p > 0.0:
        floor = tl.maximum(floor, largest + temperature * tl.log(min_p.to(tl.float32)))
    tl.store(floors_ptr + draw, floor)


def find_floors(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """fp32 [num_draws]: the lowest logit that each draw may take; -inf where it excludes nothing.

    `logits` [num_rows, vocab_size]; `draws` fp64 [num_draws, 6], contiguous, as `Draw` names their columns.
    """
    assert draws.shape[1] == NUM_FACTS and draws.is_contiguous() and logits.stride(1) == 1
    floors = logits.new_empty(len(draws), dtype=torch.float32)
    if len(draws) > 0:
        _find_floor[(len(draws),)](
            logits, draws, floors, logits.stride(0), logits.shape[1], NUM_FACTS=NUM_FACTS, BLOCK=BLOCK, num_warps=16
        )
    return floors
