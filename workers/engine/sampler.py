"""Turns logits into one sample per sequence: a function of its row, its own tokens and (seed, output index)."""

import torch

from kernels import sampling
from kernels.philox import uniform
from workers.engine.outputs import Sample, TokenLogprobs
from workers.engine.sequence import Sequence

NOT_FINITE = "the model produced logits that are not finite"


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[Sample]:
    """One sample per row of float32 logits [num_seqs, vocab_size]; a row that is not finite fails alone."""
    penalized = _penalize(logits, sequences)
    best, best_ids = sampling.greedy(penalized)
    is_finite, token_ids = best.isfinite().tolist(), best_ids.tolist()
    for row, sequence in enumerate(sequences):
        if is_finite[row] and not sequence.params.is_greedy:
            token_ids[row] = _draw(penalized[row], sequence)
    return [
        Sample(token_ids[row], _logprobs(logits[row], token_ids[row], sequence.params.logprobs))
        if is_finite[row]
        else Sample(-1, error=NOT_FINITE)
        for row, sequence in enumerate(sequences)
    ]


def _penalize(logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """The logits with every sequence's penalties, a copy where there are any: log-probabilities need the raw ones."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.params.has_penalties]
    if not rows:
        return logits
    penalized = logits.clone()
    for row in rows:
        sequence, params = sequences[row], sequences[row].params
        sampling.penalize(
            penalized[row],
            torch.tensor(sequence.prompt_ids, dtype=torch.int64, device=logits.device),
            torch.tensor(sequence.output_ids, dtype=torch.int64, device=logits.device),
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )
    return penalized


def _draw(row: torch.Tensor, sequence: Sequence) -> int:
    params = sequence.params
    token_id = sampling.draw(
        row,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=uniform(params.seed, sequence.num_output_tokens),
    )
    return int(token_id)


def _logprobs(row: torch.Tensor, token_id: int, num_top: int | None) -> TokenLogprobs | None:
    if num_top is None:
        return None
    logprob, top = sampling.logprobs(row, token_id, num_top)
    return TokenLogprobs(logprob, tuple(top))
