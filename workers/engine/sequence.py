"""A job inside the engine: its tokens, how to sample it, and where its KV lies."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from workers.engine.outputs import FinishReason

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
    ) -> None:
        self.id = id
        self.params = params
        self.tier = tier  # 0 high, 1 normal, 2 low
        self.arrival = arrival  # Unix seconds; what aging counts from
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.token_ids.extend(output_ids)  # then grown by the engine, one token per retired step

        # Written by the scheduler only.
        self.status = Status.WAITING
        self.num_computed_tokens = 0  # tokens whose K and V are in the cache
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_passed_over = 0  # sequences admitted past this one since it last ran
        self.passed_over_since: float | None = None

        # Written by the block manager only.
        self.block_table: list[int] = []
        self.num_reserved_blocks = 0  # promised at admission, not yet taken

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def finish_reason(self, eos_token_ids: frozenset[int], max_model_len: int) -> FinishReason | None:
        """Why the sequence ends with its last token, or None; a stop token wins over a limit reached with it."""
        params, num_output_tokens = self.params, self.num_output_tokens
        if num_output_tokens:
            last = self.token_ids[-1]
            if last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos):
                return "stop"
        if num_output_tokens >= params.max_tokens or len(self.token_ids) >= max_model_len:
            return "length"
        return None
