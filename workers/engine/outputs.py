"""What a step says about a sequence, on its way from the sampler to the engine's caller."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]
Pooling = Literal["mean", "last"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one output token under the model's own distribution, before penalties and temperature."""

    logprob: float  # of the token that was chosen
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest tokens, best first


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one per token
class Sample:
    """What the runner drew for one row: a token, or the reason why there is none."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    error_code: str = "engine_error"  # of that error, as the job's end has it
    is_poisonous: bool = False  # the sequence's K and V are not to be shared: they may be what is wrong
    candidates: tuple[tuple[int, float], ...] = ()  # of a beam: the likeliest (token id, logprob), best first
    embedding: list[float] | None = None  # in the place of a token: of a prompt that is pooled, and computed whole


@dataclass(slots=True)  # not frozen for the same reason; nobody writes to it
class StepOutput:
    """One new token of a sequence, or its failure. With `finish_reason` or `error` it is the sequence's last."""

    sequence_id: str
    token_id: int  # -1 when `error` or `embedding` is set
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    num_cached_tokens: int  # prompt tokens found in the cache instead of computed
    is_stop_token: bool = False  # it ended the output and is no part of its text
    choice: int = 0  # which of a group's
    # Of the prompt's tokens from the second on; with the first token.
    prompt_logprobs: list[TokenLogprobs] | None = None
    embedding: list[float] | None = None  # [hidden_size], of length 1
    error: str | None = None
    error_code: str = "engine_error"  # of that error, as the job's end has it


@dataclass(frozen=True, slots=True)
class Computed:
    """What the runner made of a batch: a sample for each of `batch.sampled`, logprobs for each of its `prompt_rows`,
    and for each of its `pooled_rows` the sum of their hidden states."""

    samples: list[Sample]
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    pooled: list[list[float]] = field(default_factory=list)
