"""From a prompt's hidden states to its embedding: summed chunk by chunk, at the end brought to length 1.

So whether the sum is of all tokens, whose mean points the same way, or is the last one's is the batch's to say.
"""

from collections.abc import Sequence as ListLike
from math import hypot, isfinite

import torch

from workers.engine.batch import PooledRows
from workers.engine.outputs import Sample

NOT_FINITE = Sample(-1, error="the model produced hidden states that are not finite, or all zero", is_poisonous=True)


def pool(states: torch.Tensor, pooled_rows: ListLike[PooledRows]) -> list[list[float]]:
    """The sum of each one's rows of the hidden states [num_tokens, hidden_size], on the host, for which this waits.

    In double precision, so that it hardly depends on how the prompt was cut into chunks.
    """
    if not pooled_rows:
        return []
    sums = [states[each.rows.start : each.rows.stop].sum(dim=0, dtype=torch.float64) for each in pooled_rows]
    found: list[list[float]] = torch.stack(sums).tolist()
    return found


def add(pooled: list[float], states: list[float]) -> None:
    """Add a chunk's to those before it, in place; empty is nothing yet."""
    pooled[:] = [a + b for a, b in zip(pooled, states, strict=True)] if pooled else states


def embedding_of(pooled: list[float]) -> Sample:
    """The sum at length 1, as a sample that has no token."""
    length = hypot(*pooled)
    if not isfinite(length) or length == 0.0:
        return NOT_FINITE
    return Sample(-1, embedding=[each / length for each in pooled])
