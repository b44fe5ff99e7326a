"""What a sequence asks of its row of logits before a token is chosen: bias, penalties, and what must not come."""

import torch

from kernels import sampling
from workers.engine.sequence import SamplingParams, Sequence


class GrammarFailed(Exception):
    """The sequence's grammar cannot say what may come next; its message is the grammar's own."""


def is_adjusted(sequence: Sequence, output_index: int) -> bool:
    """Whether `adjust` changes anything for its next token."""
    params = sequence.params
    has_rules = bool(params.logit_bias) or params.has_penalties or bool(params.bad_words)
    return has_rules or sequence.grammar is not None or output_index < params.min_tokens


def adjust(row: torch.Tensor, sequence: Sequence, output_index: int, eos_token_ids: frozenset[int]) -> None:
    """Change one row [vocab_size] in place: bias first, then penalties, then what is excluded.

    Raises GrammarFailed.
    """
    params = sequence.params
    if params.logit_bias:
        bias = torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
        sampling.add_bias(row, _ids(list(params.logit_bias), row), bias)
    if params.has_penalties:
        _penalize(row, sequence)
    excluded = _last_of_bad_words(params, sequence.token_ids)
    if output_index < params.min_tokens:
        excluded.extend(params.stop_ids(eos_token_ids))
    if excluded:
        sampling.exclude(row, _ids(excluded, row))
    if sequence.grammar is not None:
        sampling.allow_only(row, _mask(sequence, row))


def _penalize(row: torch.Tensor, sequence: Sequence) -> None:
    params = sequence.params
    sampling.penalize(
        row,
        _ids(sequence.prompt_ids, row),
        _ids(sequence.output_ids, row),
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
    )


def _last_of_bad_words(params: SamplingParams, token_ids: list[int]) -> list[int]:
    """The tokens that would complete a bad word. One that began in the prompt counts too."""
    num_tokens = len(token_ids)
    return [
        word[-1]
        for word in params.bad_words
        if len(word) == 1 or (len(word) <= num_tokens + 1 and token_ids[1 - len(word) :] == list(word[:-1]))
    ]


def _mask(sequence: Sequence, row: torch.Tensor) -> torch.Tensor:
    assert sequence.grammar is not None
    try:
        mask = bytearray(sequence.grammar.mask())
    except Exception as error:
        raise GrammarFailed(str(error)) from error
    return torch.frombuffer(mask, dtype=torch.uint8).to(row.device)


def _ids(token_ids: list[int], row: torch.Tensor) -> torch.Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=row.device)
