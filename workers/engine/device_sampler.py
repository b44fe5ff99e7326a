"""Tokens that are chosen on the device and stay there, so that the next step need not wait until the host has them."""

from dataclasses import dataclass

import torch

from kernels import sampling
from kernels.draw import Draw
from workers.engine.batch import Batch
from workers.engine.logits import is_adjusted
from workers.engine.outputs import Sample
from workers.engine.sampler import NOT_FINITE, draw_of


@dataclass(frozen=True)
class Choice:
    """How the rows of a step are chosen from: those that are not drawn from are greedy."""

    draws: list[Draw]

    @property
    def facts(self) -> list[float]:
        """Of all draws, one after the other."""
        return [value for draw in self.draws for value in draw]

    @property
    def is_restricted(self) -> bool:
        return any(draw.is_restricted for draw in self.draws)

    def token_ids(self, logits: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
        """int64 [num_rows] of logits fp32 [num_rows, vocab_size], -1 where a row is not finite.

        `facts` are fp64 on the device. Nothing waits for it.
        """
        best, token_ids = sampling.greedy(logits)
        if self.draws:
            facts = facts.view(len(self.draws), -1)
            drawn = sampling.draw_rows(logits, facts, is_restricted=self.is_restricted)
            token_ids.index_copy_(0, facts[:, 0].long(), drawn)
        return torch.where(best.isfinite(), token_ids, -1)


def make_choice(batch: Batch) -> Choice | None:
    """None when the host must look at the logits: for log-probabilities, beams, and rows that are changed first."""
    if batch.prompt_rows:
        return None
    draws = []
    for row, (sequence, output_index) in enumerate(zip(batch.sampled, batch.output_indices, strict=True)):
        params = sequence.params
        if params.logprobs is not None or params.num_beams > 1 or is_adjusted(sequence, output_index):
            return None
        if not params.is_greedy:
            draws.append(draw_of(row, params, output_index))
    return Choice(draws)


def samples_of(token_ids: list[int]) -> list[Sample]:
    """What the host makes of these."""
    return [Sample(token_id) if token_id >= 0 else NOT_FINITE for token_id in token_ids]
