"""What a computed step says of each of its sequences, once it has landed."""

from collections.abc import Iterator
from itertools import chain

from workers.engine.batch import Batch
from workers.engine.outputs import Computed, Sample
from workers.engine.pooling import add, embedding_of
from workers.engine.sequence import Sequence


def results_of(batch: Batch, computed: Computed) -> Iterator[tuple[Sequence, Sample]]:
    """Each sequence that got a token or its embedding, and what it got; parts of prompts are kept in theirs."""
    for rows, logprobs in zip(batch.prompt_rows, computed.prompt_logprobs, strict=True):
        rows.sequence.prompt_logprobs.extend(logprobs)
    for pooled, states in zip(batch.pooled_rows, computed.pooled, strict=True):
        add(pooled.sequence.pooled, states)
    whole = (each.sequence for each in batch.pooled_rows if each.sequence.is_computed)
    return chain(
        zip(batch.sampled, computed.samples, strict=True),
        ((sequence, embedding_of(sequence.pooled)) for sequence in whole),
    )
