"""Jobs as POST /v1/completions tells them: one job a prompt, its choices numbered through."""

from collections.abc import Sequence
from typing import Any

from api.completions.echo import NO_ECHO, Echo
from api.completions.logprobs import Logprobs
from api.completions.schemas import Choice, Completion, CompletionCreate
from api.foreground import by_choice
from api.openai_usage import CompletionUsage, total, usage_of
from api.output import ChoiceOutput, choices_of
from api.services import Services
from api.sse import frame
from api.submit import find_card
from db.ids import public_id
from db.job_queries import JobRow
from db.stream import Token

PREFIX = "cmpl-"


class CompletionDress:
    """What `api.foreground` asks for."""

    def __init__(self, services: Services, body: CompletionCreate, rows: Sequence[JobRow]) -> None:
        self._services = services
        self._body = body
        job = rows[0].job
        self._model = job.model
        self._completion = Completion(
            id=public_id(PREFIX, job.id), created=int(job.created_at.timestamp()), model=job.model, choices=[]
        )
        self._common = self._completion.chunk_without_choices(has_usage=body.includes_usage)
        self._echoes = [NO_ECHO] * len(rows)  # as this and what follows: set by `prepare`
        num_choices = len(rows) * body.n
        self._logprobs: list[Logprobs | None] = [None] * num_choices
        self._to_echo = [body.echo] * num_choices  # written by `told` and `ended`

    async def prepare(self) -> None:
        """Read the tokenizer, where it is needed."""
        body, texts = self._body, self._services.texts
        if body.logprobs is None and not body.echo:
            return
        card = await find_card(self._services, self._model)
        tokenizer = await texts.tokenizer(card)
        if body.logprobs is not None:
            self._logprobs = [Logprobs(tokenizer, num_top=body.logprobs) for _ in self._logprobs]
        for place, prompt in enumerate(body.prompts if body.echo else []):
            if isinstance(prompt, str) and not body.echoes_logprobs:
                self._echoes[place] = Echo(prompt)
            else:
                ids = await texts.encode(tokenizer, prompt) if isinstance(prompt, str) else prompt
                self._echoes[place] = Echo.of(tokenizer, ids)

    def whole(self, rows: Sequence[JobRow]) -> dict[str, Any]:
        """The completion."""
        choices = [self._choice(place, row, each) for place, row in enumerate(rows) for each in _outputs(row)]
        prompt = None if self._body.prompt_logprobs is None else [None, *_prompt_logprobs(rows[0])]
        return self._completion.whole(choices, total(usage_of(row.job) for row in rows), prompt_logprobs=prompt)

    def told(self, place: int, tokens: Sequence[Token]) -> bytes:
        """A chunk of each choice that has more, which begins with the prompt if that is to be told."""
        return b"".join(
            self._text_frame(place * self._body.n + i, place, each) for i, each in by_choice(tokens).items()
        )

    def ended(self, place: int, finish_reasons: Sequence[str | None]) -> bytes:
        """A chunk with the reason of each choice."""
        first = place * self._body.n
        return b"".join(
            self._chunk(first + i, text=self._echo(first + i, place), finish_reason=reason)
            for i, reason in enumerate(finish_reasons)
        )

    def used(self, usage: CompletionUsage) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self._body.includes_usage:
            return b""
        return frame(self._common | {"choices": [], "usage": usage.model_dump(mode="json")})

    def _choice(self, place: int, row: JobRow, output: ChoiceOutput) -> Choice:
        index, tokens = place * self._body.n + output.index, output.tokens
        if self._body.echoes_logprobs:
            tokens = self._echoes[place].with_logprobs(_prompt_logprobs(row)) + tokens
        teller = self._logprobs[index]
        return Choice(
            index=index,
            text=self._echoes[place].text + output.text,
            logprobs=None if teller is None else teller.of(tokens),
            finish_reason=output.finish_reason,
        )

    def _text_frame(self, index: int, place: int, tokens: Sequence[Token]) -> bytes:
        """The next tokens of a choice, and what their probabilities are if that was asked for."""
        teller = self._logprobs[index]
        logprobs = None if teller is None else teller.of(tokens).model_dump(mode="json")
        text = self._echo(index, place) + "".join(token.text for token in tokens)
        return self._chunk(index, text=text, logprobs=logprobs)

    def _echo(self, index: int, place: int) -> str:
        """The prompt, the first time."""
        is_due, self._to_echo[index] = self._to_echo[index], False
        return self._echoes[place].text if is_due else ""

    def _chunk(self, index: int, *, text: str = "", logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        said = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return frame(self._common | {"choices": [said]})


def _outputs(row: JobRow) -> list[ChoiceOutput]:
    assert row.output is not None, "a succeeded job has an output"
    return choices_of(row.job, row.output)


def _prompt_logprobs(row: JobRow) -> list[dict[str, Any]]:
    assert row.output is not None, "a succeeded job has an output"
    return row.output.prompt_logprobs or []
