"""An ended job's output: as the tokens that its stream had, and one choice at a time."""

from dataclasses import dataclass
from typing import Any

from db.models import Job, JobOutput
from db.stream import Token


@dataclass(frozen=True)
class ChoiceOutput:
    """What was written of one choice; it may have been cut short, before its first token even."""

    index: int
    tokens: list[Token]
    finish_reason: str | None

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def logprobs(self) -> list[dict[str, Any] | None]:
        return [token.logprobs for token in self.tokens]


def choices_of(job: Job, output: JobOutput) -> list[ChoiceOutput]:
    """All of the job's choices, in their order."""
    tokens: list[list[Token]] = [[] for _ in range(job.num_choices)]
    for token in tokens_of(output):
        tokens[token.choice].append(token)
    reasons = output.finish_reasons or [job.finish_reason] * job.num_choices
    return [ChoiceOutput(i, *each) for i, each in enumerate(zip(tokens, reasons, strict=True))]


def tokens_of(output: JobOutput | None) -> list[Token]:
    """The output as the stream had it, so that events read later are the events that were sent."""
    if output is None:
        return []
    starts = [0, *output.text_offsets[:-1]]
    num_tokens = len(output.token_ids)
    logprobs, choices = output.logprobs or [None] * num_tokens, output.choices or [0] * num_tokens
    fields = zip(output.token_ids, starts, output.text_offsets, logprobs, choices, strict=True)
    return [
        Token(token_id, output.text[start:end], logprob, choice) for token_id, start, end, logprob, choice in fields
    ]
