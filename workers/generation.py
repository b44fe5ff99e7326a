"""One held job while the engine generates it: token ids in, text pieces and the end out. Engine thread only."""

import math
from typing import Any

from db.stream import Token
from db.texts import storable
from workers.choices import Choices
from workers.engine.errors import Refused
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.outputs import Pooling, StepOutput, TokenLogprobs
from workers.engine.sequence import SamplingParams, Sequence
from workers.held import HeldJob
from workers.text.grammar import Grammar, GrammarSpec
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
    """Rebuilds from the delivered tokens what depends on them, then turns each step's outputs into tokens.

    A job's choices are generated side by side. Those of a beam search are told at its end, so a resumed one is searched
    anew.
    """

    def __init__(
        self,
        held: HeldJob,
        tokenizer: Tokenizer,
        grammar: Grammar | None = None,
        *,
        salt: bytes = b"",
        pooling: Pooling = "mean",
    ) -> None:
        """`grammar` is the job's own, at its beginning; None where its output is free.

        Jobs of one `salt` share what was computed of equal beginnings. `pooling` makes an embedding job's vector.
        """
        sampling = held.claimed.sampling
        self.held = held
        self._salt = salt
        self._pooling = pooling if held.claimed.kind == "embedding" else None
        self._is_search = sampling.num_beams > 1
        self._texts = [OutputText(tokenizer, sampling.stop) for _ in range(sampling.n)]
        self._grammars = [None if grammar is None else grammar.fork() for _ in range(sampling.num_seats)]
        self._choices = Choices(sampling.n, told=() if self._is_search else held.tokens)
        self._num_told = len(held.tokens) if self._is_search else 0  # of what comes first, which was told before

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return None not in self.held.finish_reasons

    def resume(self) -> None:
        """Take up the delivered tokens. A choice ends when its text holds a stop string, or its grammar is complete.

        Raises GrammarError when they do not follow it.
        """
        for choice, (text, grammar) in enumerate(zip(self._texts, self._grammars, strict=False)):
            token_ids = self._delivered(choice)
            text.replay(token_ids)
            if grammar is not None:
                grammar.replay(token_ids)
            if text.is_stopped or (grammar is not None and grammar.is_finished):
                self.end(choice, "stop")

    def check_length(self, max_model_len: int) -> None:
        """Raise TooLong when this worker's model is smaller than the card that the job was accepted by."""
        num_prompt_tokens, max_tokens = len(self.held.claimed.prompt_token_ids), self.held.claimed.max_tokens
        if num_prompt_tokens + max_tokens > max_model_len:
            raise TooLong(num_prompt_tokens, max_tokens, max_model_len)

    def unit(self) -> Sequence | SequenceGroup:
        """The engine's view of what is still to be generated, delivered tokens included."""
        id, num_seats = self.held.sequence_id, self.held.claimed.sampling.num_seats
        if num_seats == 1:
            return self._sequence(id, 0)
        reasons = self.held.finish_reasons
        living = [i for i in range(num_seats) if self._is_search or reasons[i] is None]
        return SequenceGroup(id, [self._sequence(f"{id}/{choice}", choice) for choice in living])

    def push(self, output: StepOutput) -> str | None:
        """Append a step's token to the held job's, in its place. The finish reason when it is its choice's last."""
        held, choice = self.held, output.choice
        if held.finish_reasons[choice] is not None:
            return None  # a search found more behind a stop string
        if output.embedding is not None:
            return self._take_embedding(output.embedding, output.num_cached_tokens)
        is_last = output.finish_reason is not None
        piece = self._texts[choice].push(output.token_id, is_last=is_last, hide=output.is_stop_token)
        text = storable(piece.text)  # here, so that the stream and the row say the same
        held.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            held.prompt_logprobs = [_as_json(each) for each in output.prompt_logprobs]
        self._choices.put(Token(output.token_id, text, _as_json(output.logprobs), choice))
        reason = "stop" if piece.is_stopped else output.finish_reason
        if reason is not None:
            self.end(choice, reason)
        self._tell()
        return reason

    def _take_embedding(self, embedding: list[float], num_cached_tokens: int) -> str:
        """It is all there is of its job."""
        self.held.embedding, self.held.num_cached_tokens = embedding, num_cached_tokens
        self.end(0, "stop")
        return "stop"

    def end(self, choice: int, reason: str) -> None:
        """The choice has all its tokens."""
        self.held.finish_reasons[choice] = reason
        self._choices.end(choice)

    def close(self) -> None:
        """Nothing more is generated: append what was held back for the sake of the order."""
        self._choices.end_all()
        self._tell()

    def _tell(self) -> None:
        tokens = self._choices.take()
        num_told = min(self._num_told, len(tokens))
        self._num_told -= num_told
        self.held.tokens.extend(tokens[num_told:])

    def _delivered(self, choice: int) -> list[int]:
        """The choice's token ids that are not generated again."""
        return [] if self._is_search else [token.token_id for token in self.held.tokens if token.choice == choice]

    def _sequence(self, id: str, choice: int) -> Sequence:
        claimed = self.held.claimed
        sequence = Sequence(
            id,
            claimed.prompt_token_ids,
            self._params(choice),
            output_ids=self._delivered(choice),
            tier=claimed.tier,
            arrival=claimed.ready_at,
            salt=self._salt,
            grammar=self._grammars[choice],
        )
        sequence.choice = choice
        return sequence

    def _params(self, choice: int) -> SamplingParams:
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
            seed=choice_seed(claimed.seed, choice),
            stop_token_ids=frozenset(sampling.stop_token_ids),
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            logit_bias=sampling.logit_bias,
            min_tokens=sampling.min_tokens,
            bad_words=sampling.bad_words,
            n=sampling.n,
            num_beams=sampling.num_beams,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            pooling=self._pooling,
        )


def grammar_spec(held: HeldJob) -> GrammarSpec | None:
    """What the job's output must follow, or None."""
    output = held.claimed.sampling.structured_output
    return None if output is None else GrammarSpec(output.kind, output.text)


def _as_json(logprobs: TokenLogprobs | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {
        "logprob": _finite(logprobs.logprob),
        "top": [[token_id, _finite(logprob)] for token_id, logprob in logprobs.top],
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
