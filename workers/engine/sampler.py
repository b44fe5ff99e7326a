"""Turns logits into one sample per sequence: a function of its row, its own tokens and (seed, output index)."""

from math import isfinite

import torch

from kernels import sampling
from kernels.philox import uniform
from workers.engine.logits import GrammarFailed, adjust, is_adjusted
from workers.engine.outputs import Sample, TokenLogprobs
from workers.engine.sequence import SamplingParams, Sequence

NOT_FINITE = Sample(-1, error="the model produced logits that are not finite", is_poisonous=True)
NOTHING_LEFT = "no token is left: grammar, bad_words and min_tokens together exclude every one"


def sample(
    logits: torch.Tensor,
    sequences: list[Sequence],
    output_indices: list[int],
    eos_token_ids: frozenset[int] = frozenset(),
) -> list[Sample]:
    """One sample per row of float32 logits [num_seqs, vocab_size]; what is wrong with a row fails that row alone.

    `output_indices` says which output token of its sequence each is to be.
    """
    best, best_ids = sampling.greedy(logits)
    rows = zip(logits, sequences, output_indices, map(isfinite, best.tolist()), best_ids.tolist(), strict=True)
    return [
        _sample_row(row, sequence, output_index, best_id, eos_token_ids) if is_finite else NOT_FINITE
        for row, sequence, output_index, is_finite, best_id in rows
    ]


def prompt_logprobs(logits: torch.Tensor, token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """How likely each token was: float32 logits [num_tokens, vocab_size] of the rows that predict them."""
    return [_logprobs(row, token_id, num_top) for row, token_id in zip(logits, token_ids, strict=True)]


def _sample_row(
    row: torch.Tensor, sequence: Sequence, output_index: int, best_id: int, eos_token_ids: frozenset[int]
) -> Sample:
    try:
        if sequence.params.num_beams > 1:
            return _candidates(row, sequence, output_index, eos_token_ids)
        token_id = _choose(row, sequence, output_index, best_id, eos_token_ids)
        if token_id is None:
            return Sample(-1, error=NOTHING_LEFT, error_code=_code_of(sequence))
        num_top = sequence.params.logprobs
        return Sample(token_id, None if num_top is None else _logprobs(row, token_id, num_top))
    except GrammarFailed as error:
        return Sample(-1, error=f"the grammar cannot go on: {error}", error_code="grammar_failed")
    except Exception as error:  # whatever it is, the other rows go on
        return Sample(-1, error=f"no token could be chosen: {type(error).__name__}: {error}")


def _choose(
    row: torch.Tensor, sequence: Sequence, output_index: int, best_id: int, eos_token_ids: frozenset[int]
) -> int | None:
    """The next token, or None where every one is excluded. `best_id` is the largest of the row as it is."""
    if is_adjusted(sequence, output_index):
        row = row.clone()  # log-probabilities are those of the raw row
        adjust(row, sequence, output_index, eos_token_ids)
        best, best_ids = sampling.greedy(row.unsqueeze(0))
        if not bool(best.isfinite()):
            return None
        best_id = int(best_ids)
    return best_id if sequence.params.is_greedy else _draw(row, sequence.params, output_index)


def _draw(row: torch.Tensor, params: SamplingParams, output_index: int) -> int:
    token_id = sampling.draw(
        row,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=uniform(params.seed, output_index),
    )
    return int(token_id)


def _candidates(row: torch.Tensor, sequence: Sequence, output_index: int, eos_token_ids: frozenset[int]) -> Sample:
    """What a beam may go on with: enough that `num_beams` of them do not stop it, unless fewer are allowed.

    Bias and penalties act on log-probabilities, and what is left is not normalised again: so does transformers.
    """
    scores = row.log_softmax(dim=-1)
    adjust(scores, sequence, output_index, eos_token_ids)
    num = max(2, 1 + len(sequence.params.stop_ids(eos_token_ids))) * sequence.params.num_beams
    candidates = tuple(each for each in sampling.likeliest(scores, num) if each[1] > -torch.inf)
    if not candidates:
        return Sample(-1, error=NOTHING_LEFT, error_code=_code_of(sequence))
    return Sample(candidates[0][0], candidates=candidates)


def _code_of(sequence: Sequence) -> str:
    return "grammar_failed" if sequence.grammar is not None else "engine_error"


def _logprobs(row: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    logprob, top = sampling.logprobs(row, token_id, num_top)
    return TokenLogprobs(logprob, tuple(top))
