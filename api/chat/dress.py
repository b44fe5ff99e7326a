"""A job as POST /v1/chat/completions tells it."""

from collections.abc import Iterable, Sequence
from typing import Any

from api.chat.choice import Delta, Reading, StreamedChoice, whole_choice
from api.chat.schemas import ChatCreate
from api.chat.views import ChatCompletion
from api.foreground import by_choice
from api.openai_fields import USED_TIERS
from api.openai_usage import CompletionUsage, usage_of
from api.output import choices_of
from api.services import Services
from api.sse import frame
from api.submit import find_card
from db.ids import public_id
from db.job_queries import JobRow
from db.models import Job
from db.stream import Token

PREFIX = "chatcmpl-"


class ChatDress:
    """What `api.foreground` asks for. There is one job, with all choices."""

    def __init__(self, services: Services, body: ChatCreate, job: Job) -> None:
        self._services = services
        self._body = body
        self._job = job
        self._reading = Reading(job.id)  # as the next: set by `prepare`
        self._choices: list[StreamedChoice] = []
        self._common = {
            "id": public_id(PREFIX, job.id),
            "object": "chat.completion.chunk",
            "created": int(job.created_at.timestamp()),
            "model": job.model,
            "service_tier": USED_TIERS[job.tier],
        } | ({"usage": None} if body.includes_usage else {})

    async def prepare(self) -> None:
        """Read the tokenizer, where it is needed."""
        tools = self._body.tool_use
        if tools is not None or self._body.logprobs:
            card = await find_card(self._services, self._job.model)
            tokenizer = await self._services.texts.tokenizer(card)
            self._reading = Reading(
                self._job.id,
                spelling=None if tools is None else tools.spelling(card, tokenizer),
                tokenizer=tokenizer if self._body.logprobs else None,
            )
        self._choices = [StreamedChoice(self._reading, index) for index in range(self._body.n)]

    def whole(self, rows: Sequence[JobRow]) -> dict[str, Any]:
        """The chat completion."""
        (row,) = rows
        assert row.output is not None, "a succeeded job has an output"
        prompt = row.output.prompt_logprobs
        completion = ChatCompletion(
            id=self._common["id"],
            created=self._common["created"],
            model=row.job.model,
            choices=[
                whole_choice(self._reading, each.index, each.tokens, each.finish_reason)
                for each in choices_of(row.job, row.output)
            ],
            usage=usage_of(row.job),
            service_tier=USED_TIERS[row.job.tier],
        )
        told = completion.model_dump(mode="json", exclude={"prompt_logprobs"})
        for choice in told["choices"]:
            if choice["message"]["tool_calls"] is None:
                del choice["message"]["tool_calls"]
        return told if prompt is None else told | {"prompt_logprobs": [None, *prompt]}

    def told(self, place: int, tokens: Sequence[Token]) -> bytes:
        """Chunks of each choice that has more."""
        return self._frames(
            delta for choice, each in by_choice(tokens).items() for delta in self._choices[choice].push(each)
        )

    def ended(self, place: int, finish_reasons: Sequence[str | None]) -> bytes:
        """What was held back of each choice, and a chunk with its reason."""
        ends = zip(self._choices, finish_reasons, strict=True)
        return self._frames(delta for choice, reason in ends for delta in choice.end(reason))

    def used(self, usage: CompletionUsage) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self._body.includes_usage:
            return b""
        return frame(self._common | {"choices": [], "usage": usage.model_dump(mode="json")})

    def _frames(self, choices: Iterable[Delta]) -> bytes:
        return b"".join(frame(self._common | {"choices": [choice]}) for choice in choices)
