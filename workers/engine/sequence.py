"""A job inside the engine: its tokens, how to sample it, and where its KV lies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from workers.engine.grammar import Grammar
from workers.engine.group import SequenceGroup
from workers.engine.outputs import FinishReason, Pooling, TokenLogprobs

GREEDY_BELOW = 1e-5  # a smaller temperature would overflow float32


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose output tokens and when to end. Values are validated by the API."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # per occurrence among the output tokens
    presence_penalty: float = 0.0  # once per token that occurs among the output tokens
    repetition_penalty: float = 1.0  # on every token of prompt and output
    seed: int = 0  # signed 64-bit
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0: the chosen token's; n: also the n likeliest
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of these token ids
    min_tokens: int = 0  # output tokens before which nothing ends the output
    bad_words: tuple[tuple[int, ...], ...] = ()  # runs of token ids that are never completed
    n: int = 1  # outputs of the prompt
    num_beams: int = 1  # more than 1: beam search
    length_penalty: float = 1.0  # of beam search
    early_stopping: bool = False  # of beam search
    pooling: Pooling | None = None  # no token is sampled: the prompt's hidden states, or the last, make its embedding

    def stop_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end the output."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | eos_token_ids

    @property
    def needs_output(self) -> bool:
        """Whether the choice of a token depends on which ones came before it, not only on their number."""
        return self.has_penalties or bool(self.bad_words) or self.num_beams > 1

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Prompt and output tokens of one job, with `num_computed_tokens` catching up with `num_tokens`.

    `output_ids` is what an earlier run already delivered; the sequence goes on behind it as if it had made it itself.
    Compared by identity: a sequence is a place, not a value.
    """

    def __init__(
        self,
        id: str,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        *,
        output_ids: Iterable[int] = (),
        tier: int,
        arrival: float,
        salt: bytes = b"",
        grammar: Grammar | None = None,
    ) -> None:
        self.id = id
        self.group: SequenceGroup | None = None  # written by the group; None: its job's only output
        self.choice = 0  # written by whoever makes the group
        self.params = params
        self.tier = tier  # 0 high, 1 normal, 2 low
        self.arrival = arrival  # Unix seconds; what aging counts from
        self.salt = salt  # of the prefix cache: only sequences of the same salt share blocks
        self.grammar = grammar  # what its output must follow; None: nothing
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.token_ids.extend(output_ids)  # then grown by the engine, one token per retired step

        # Written by the engine only.
        self.prompt_logprobs: list[TokenLogprobs] = []  # complete with the first output token
        self.is_prompt_told = False
        self.pooled: list[float] = []  # sum of the hidden states of those that are computed, [hidden_size]

        # Written by the scheduler only.
        self.status = Status.WAITING
        self.num_computed_tokens = 0  # tokens whose K and V are in the cache
        self.num_flying_tokens = 0  # more of them, computed by the step in flight
        self.num_future_tokens = 0  # being sampled: `token_ids` does not have them yet
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.preempted_at: float | None = None  # Unix seconds; None unless it waits after it ran
        self.num_passed_over = 0  # sequences admitted past this one since it last ran
        self.passed_over_since: float | None = None

        # Written by the block manager only.
        self.block_table: list[int] = []
        self.num_reserved_blocks = 0  # promised at admission, not yet taken

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def unit_id(self) -> str:
        """What the engine's caller knows it by: its group's id, or its own."""
        return self.id if self.group is None else self.group.id

    @property
    def needs_host(self) -> bool:
        """Whether its next token can only be chosen once the last one is known here."""
        return self.grammar is not None or self.params.needs_output

    @property
    def is_computed(self) -> bool:
        """Whether K and V of all its tokens are in the cache."""
        return self.num_computed_tokens == len(self.token_ids)

    @property
    def num_started_tokens(self) -> int:
        """Tokens that are computed, or will be once the step in flight retires."""
        return self.num_computed_tokens + self.num_flying_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that the next step could compute, one that is being sampled included."""
        return len(self.token_ids) + self.num_future_tokens - self.num_computed_tokens - self.num_flying_tokens

    @property
    def num_shareable_tokens(self) -> int:
        """The most that admission may find in the cache: what is sampled next comes from computing what is before it.

        A group's choices go on from the end of their prompt.
        """
        if self.wants_prompt_logprobs or self.params.pooling == "mean":
            return 0
        is_unforked = self.group is not None and not self.group.is_forked
        return (self.num_prompt_tokens if is_unforked else len(self.token_ids)) - 1

    @property
    def num_tokens_left(self) -> int:
        """The most that there is still to compute."""
        return len(self.token_ids) - self.num_computed_tokens + self.params.max_tokens - self.num_output_tokens

    @property
    def seats(self) -> int:
        """Rows that it may need in a step: those of its group's other choices too, until they have forked."""
        return 1 if self.group is None or self.group.is_forked else len(self.group.living)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the logits of the prompt's rows are still to be looked at."""
        return self.params.prompt_logprobs is not None and not self.is_prompt_told

    def append(self, token_id: int) -> None:
        """Take the next output token. Raises what the grammar raises. The engine calls this, once per retired step."""
        self.token_ids.append(token_id)
        if self.grammar is not None:
            self.grammar.accept(token_id)

    def take_prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """Those of the prompt, with the first output token; None when nobody asked, or they were taken."""
        if not self.wants_prompt_logprobs:
            return None
        self.is_prompt_told = True
        return self.prompt_logprobs

    def finish_reason(self, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Why the sequence ends with its last token, or None; a stop token wins over a limit reached with it."""
        params, num_tokens = self.params, len(self.token_ids)
        num_output_tokens = num_tokens - self.num_prompt_tokens
        last = self.token_ids[-1]
        # As `is_stopped`, written out: this runs for every token.
        is_stopped = last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos)
        if is_stopped and num_output_tokens:
            return "stop"
        if self.grammar is not None and self.grammar.is_finished:
            return "stop"
        if params.pooling is not None:
            return "stop" if self.is_computed else None
        if num_output_tokens >= params.max_tokens or num_tokens >= max_model_len:
            return "length"
        return None

    def is_stopped(self, eos_token_ids: frozenset[int]) -> bool:
        """Whether the last token is one that ends the output, and so no part of it."""
        last, params = self.token_ids[-1], self.params
        return last in params.stop_token_ids or (not params.ignore_eos and last in eos_token_ids)
