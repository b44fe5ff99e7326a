"""One held job while the engine generates it: token ids in, text pieces and the end out. Engine thread only."""

import math
from typing import Any

from db.stream import Token
from db.texts import storable
from workers.engine.errors import Refused
from workers.engine.outputs import StepOutput, TokenLogprobs
from workers.engine.sequence import SamplingParams, Sequence
from workers.held import HeldJob
from workers.text.output_text import OutputText
from workers.text.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity; OpenAI's clients know this number as "impossible"


class TooLong(Refused):
    """The output would be cut before `max_tokens`, as no client asked for."""

    def __init__(self, num_prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"prompt has {num_prompt_tokens:,} tokens and max_tokens is {max_tokens:,}, together "
            f"{num_prompt_tokens + max_tokens:,}; this worker's model takes {max_model_len:,}: lower max_tokens, "
            "shorten the prompt or run workers of one length"
        )


class Generation:
    """Rebuilds from the delivered tokens what depends on them, then turns each step's output into one token."""

    def __init__(self, held: HeldJob, tokenizer: Tokenizer) -> None:
        self.held = held
        self._output_text = OutputText(tokenizer, held.claimed.sampling.stop)

    def resume(self) -> str | None:
        """Take up the delivered tokens. "stop" when their text holds a stop string: the job is over, uncommitted."""
        self._output_text.replay(token.token_id for token in self.held.tokens)
        return "stop" if self._output_text.is_stopped else None

    def check_length(self, max_model_len: int) -> None:
        """Raise TooLong when this worker's model is smaller than the card that the job was accepted by."""
        num_prompt_tokens, max_tokens = len(self.held.claimed.prompt_token_ids), self.held.claimed.max_tokens
        if num_prompt_tokens + max_tokens > max_model_len:
            raise TooLong(num_prompt_tokens, max_tokens, max_model_len)

    def sequence(self) -> Sequence:
        """The engine's view of the job, delivered tokens included."""
        claimed = self.held.claimed
        return Sequence(
            self.held.sequence_id,
            claimed.prompt_token_ids,
            self._params(),
            output_ids=[token.token_id for token in self.held.tokens],
            tier=claimed.tier,
            arrival=claimed.ready_at,
        )

    def push(self, output: StepOutput) -> str | None:
        """Append the step's token to the held job's. The finish reason when it is the last."""
        is_stop_token = output.finish_reason == "stop"
        piece = self._output_text.push(output.token_id, is_last=output.finish_reason is not None, hide=is_stop_token)
        text = storable(piece.text)  # here, so that the stream and the row say the same
        self.held.num_cached_tokens = output.num_cached_tokens
        self.held.tokens.append(Token(output.token_id, text, _as_json(output.logprobs)))
        return "stop" if piece.is_stopped else output.finish_reason

    def _params(self) -> SamplingParams:
        claimed, sampling = self.held.claimed, self.held.claimed.sampling
        return SamplingParams(
            max_tokens=claimed.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=claimed.seed,
            stop_token_ids=frozenset(sampling.stop_token_ids),
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
        )


def _as_json(logprobs: TokenLogprobs | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {
        "logprob": _finite(logprobs.logprob),
        "top": [[token_id, _finite(logprob)] for token_id, logprob in logprobs.top],
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
