"""An ended job's output, one choice at a time."""

from dataclasses import dataclass
from typing import Any

from db.models import Job, JobOutput
from db.outputs import tokens_of
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
