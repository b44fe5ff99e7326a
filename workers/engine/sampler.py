"""Turns logits into one sample per sequence: a function of its row, its own tokens and (seed, output index)."""

from math import isfinite

import torch

from kernels import sampling
from kernels.draw import Draw
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
    is_finite = [isfinite(each) for each in best.tolist()]
    token_ids = _choose_together(logits, sequences, output_indices, is_finite, best_ids.tolist())
    rows = zip(logits, sequences, output_indices, is_finite, token_ids, strict=True)
    return [
        _sample_row(row, sequence, output_index, token_id, eos_token_ids) if row_is_finite else NOT_FINITE
        for row, sequence, output_index, row_is_finite, token_id in rows
    ]


def prompt_logprobs(logits: torch.Tensor, token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """How likely each token was: float32 logits [num_tokens, vocab_size] of the rows that predict them."""
    return [_logprobs(row, token_id, num_top) for row, token_id in zip(logits, token_ids, strict=True)]


def _choose_together(
    logits: torch.Tensor,
    sequences: list[Sequence],
    output_indices: list[int],
    is_finite: list[bool],
    best_ids: list[int],
) -> list[int | None]:
    """The next tokens, as far as the rows are taken as they are; all None where that fails for one of them."""
    token_ids: list[int | None] = [*best_ids]
    try:
        draws = [
            draw_of(row, sequence.params, output_index)
            for row, (sequence, output_index) in enumerate(zip(sequences, output_indices, strict=True))
            if is_finite[row] and not sequence.params.is_greedy and not is_adjusted(sequence, output_index)
        ]
        for each, token_id in zip(draws, sampling.draw_many(logits, draws), strict=True):
            token_ids[each.row] = token_id
    except Exception:  # each row is then chosen for alone, and the one that it comes from fails there
        return [None] * len(sequences)
    return token_ids


def _sample_row(
    row: torch.Tensor, sequence: Sequence, output_index: int, token_id: int | None, eos_token_ids: frozenset[int]
) -> Sample:
    try:
        if sequence.params.num_beams > 1:
            return _candidates(row, sequence, output_index, eos_token_ids)
        if token_id is None or is_adjusted(sequence, output_index):
            token_id = _choose(row, sequence, output_index, eos_token_ids)
        if token_id is None:
            return Sample(-1, error=NOTHING_LEFT, error_code=_code_of(sequence))
        num_top = sequence.params.logprobs
        return Sample(token_id, None if num_top is None else _logprobs(row, token_id, num_top))
    except GrammarFailed as error:
        return Sample(-1, error=f"the grammar cannot go on: {error}", error_code="grammar_failed")
    except Exception as error:  # whatever it is, the other rows go on
        return Sample(-1, error=f"no token could be chosen: {type(error).__name__}: {error}")


def _choose(row: torch.Tensor, sequence: Sequence, output_index: int, eos_token_ids: frozenset[int]) -> int | None:
    """The next token of one row, or None where every one is excluded."""
    row = row.clone()  # log-probabilities are those of the raw row
    adjust(row, sequence, output_index, eos_token_ids)
    best, best_ids = sampling.greedy(row.unsqueeze(0))
    if not bool(best.isfinite()):
        return None
    if sequence.params.is_greedy:
        return int(best_ids)
    [token_id] = sampling.draw_many(row.unsqueeze(0), [draw_of(0, sequence.params, output_index)])
    return token_id


def draw_of(row: int, params: SamplingParams, output_index: int) -> Draw:
    """How output token `output_index` is drawn from a row, unless it is greedy."""
    return Draw(
        row,
        params.top_k,
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=uniform(params.seed, output_index),
    )


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
