"""Rows of logits of many kinds, with the sequences that they are of, and samples of them in one line."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.workers.engine.fakes import make_sequence
from workers.engine.outputs import Sample
from workers.engine.sampler import sample
from workers.engine.sequence import Sequence

VOCAB_SIZE = 3001
EOS = frozenset({2, 77})


@dataclass
class OnlyThese:
    """A grammar of one place: the token ids that may come, or an exception."""

    token_ids: set[int]
    error: Exception | None = None
    is_finished: bool = False

    def mask(self) -> bytes:
        if self.error is not None:
            raise self.error
        bits = sum(1 << token_id for token_id in self.token_ids)
        return bits.to_bytes(max(self.token_ids) // 8 + 1, "little")

    def accept(self, token_id: int) -> None:
        raise AssertionError("the sampler only asks")

    def fork(self) -> "OnlyThese":
        return self


def make_row(index: int) -> tuple[torch.Tensor, Sequence]:
    """A row of one of many kinds, with its own logits, tokens and seed."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 5},
        {"repetition_penalty": 1.2, "logprobs": 0},
        {"temperature": 2.0, "top_p": 0.999999, "frequency_penalty": 0.3},
        {"temperature": 1.0, "top_k": 2000, "top_p": 0.95, "min_p": 0.001, "presence_penalty": 1.0},
        {"temperature": 1.0, "logit_bias": {5: 9.0, 6: 9.5, VOCAB_SIZE + 5: 100.0}},
        {"min_tokens": 9, "stop_token_ids": frozenset({4}), "logprobs": 2},
        {"temperature": 1.0, "bad_words": ((7,), (2000, 8), (3, 2000, 9))},
        {"num_beams": 3, "logit_bias": {1: 2.0}, "repetition_penalty": 1.3},
        {"temperature": 1.0, "grammar": OnlyThese({3, 900, 2999})},
        {"temperature": 0.8, "top_p": 0.9, "grammar": OnlyThese(set(range(50, 90))), "min_tokens": 30, "logprobs": 1},
    )
    kind = dict(kinds[index % len(kinds)])
    grammar = kind.pop("grammar", None)
    logits = 4 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(index))
    sequence = make_sequence(f"s{index}", 7, output_ids=[index, 3, 3, 2000], seed=index - 4, **kind)
    sequence.grammar = grammar
    return logits, sequence


def sample_rows(indices: list[int]) -> list[Sample]:
    rows = [make_row(index) for index in indices]
    return draw_rows(torch.stack([logits for logits, _ in rows]), [sequence for _, sequence in rows])


def draw_rows(logits: torch.Tensor, sequences: list[Sequence]) -> list[Sample]:
    return sample(logits, sequences, [sequence.num_output_tokens for sequence in sequences], EOS)


def token_of(logits: torch.Tensor, sequence: Sequence) -> int:
    [drawn] = draw_rows(logits.reshape(1, -1), [sequence])
    assert drawn.error is None
    return drawn.token_id
