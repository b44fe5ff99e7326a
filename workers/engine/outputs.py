"""What a step says about a sequence, on its way from the sampler to the engine's caller."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one output token under the model's own distribution, before penalties and temperature."""

    logprob: float  # of the token that was chosen
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest tokens, best first


@dataclass(frozen=True, slots=True)
class Sample:
    """What the runner drew for one row: a token, or the reason why there is none."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One new token of a sequence, or its failure. With `finish_reason` or `error` it is the sequence's last."""

    sequence_id: str
    token_id: int  # -1 when `error` is set
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    num_cached_tokens: int  # prompt tokens found in the cache instead of computed
    error: str | None = None
