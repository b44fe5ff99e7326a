"""A client that waits for its text: one answer at the end, or chunks of it; its job is cancelled if it leaves."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from api.auth import Caller
from api.cancel import cancel
from api.completion_schemas import (
    Choice,
    Completion,
    CompletionCreate,
    CompletionUsage,
    PromptTokensDetails,
)
from api.errors import NO_RETRY, ApiError, error_body
from api.follow import Ended, Succeeded, Tokens, follow
from api.leaving import CLIENT_GONE, wait_unless_left
from api.openai_logprobs import Logprobs
from api.output import ChoiceOutput, choices_of
from api.services import Services
from api.sse import DONE, frame
from api.submit import find_card
from db.ids import public_id
from db.job_queries import JobRow
from db.models import Job, Status
from db.stream import Token

PREFIX = "cmpl-"


class Foreground:
    """A completion that a client waits for. When the client leaves before the end, the job is cancelled.

    That is for whoever answers to say, by `abandon`, once nobody waits any more: `answer` for itself, and for the
    frames the response that sends them, as a client may leave before the first of them is asked for.
    """

    def __init__(
        self, services: Services, caller: Caller, row: JobRow, body: CompletionCreate, *, is_kept: bool
    ) -> None:
        self.services = services
        self.caller = caller
        self.row = row
        self.body = body
        self.is_over = is_kept  # nothing to cancel any more; set once, by whoever ends or abandons it
        self.completion = Completion(
            id=public_id(PREFIX, row.job.id),
            created=int(row.job.created_at.timestamp()),
            model=row.job.model,
            choices=[],
        )
        self._common = self.completion.chunk_without_choices(has_usage=body.includes_usage)

    async def answer(self, request: Request) -> Response:
        """The whole completion."""
        try:
            ended = await wait_unless_left(self.services, self.row, request)
            if ended is None:
                return Response(status_code=CLIENT_GONE)
            self.row, self.is_over = ended, True
        finally:
            self.abandon()
        return await self._whole()

    async def frames(self) -> AsyncGenerator[bytes]:
        """A chunk of each choice when there is more of it, then one with the reason of each end, one with the usage if
        wanted, and `[DONE]`."""
        logprobs = [await self._logprobs() for _ in range(self.body.n)]
        async for item in follow(self.services, self.row, wants_rows=False):
            if isinstance(item, Tokens):
                yield b"".join(self._text_frame(choice, tokens, logprobs) for choice, tokens in _by_choice(item.tokens))
            elif isinstance(item, Succeeded):
                self.is_over = True
                usage = _usage(self.row.job, item.num_tokens, item.success.num_cached_tokens)
                yield self._last_frames(item.success.finish_reasons, usage)
            elif isinstance(item, Ended):
                self.is_over = True
                yield self._end_frames(item.row)

    def abandon(self) -> None:
        """Cancel the job unless it is over."""
        if not self.is_over:
            self.is_over = True
            self.services.in_background(cancel(self.services, self.caller.tenant, self.row.job.id))

    async def _whole(self) -> Response:
        error = end_error(self.row.job)
        if error is not None:
            raise error
        output = self.row.output
        assert output is not None, "a succeeded job has an output"
        choices = [await self._choice(each) for each in choices_of(self.row.job, output)]
        prompt = None if output.prompt_logprobs is None else [None, *output.prompt_logprobs]
        return JSONResponse(self.completion.whole(choices, _usage_of(self.row.job), prompt_logprobs=prompt))

    async def _choice(self, output: ChoiceOutput) -> Choice:
        logprobs = await self._logprobs()
        return Choice(
            index=output.index,
            text=output.text,
            logprobs=None if logprobs is None else logprobs.of(output.tokens),
            finish_reason=output.finish_reason,
        )

    async def _logprobs(self) -> Logprobs | None:
        if self.body.logprobs is None:
            return None
        card = await find_card(self.services, self.row.job.model)
        return Logprobs(await self.services.texts.tokenizer(card), num_top=self.body.logprobs)

    def _text_frame(self, choice: int, tokens: list[Token], logprobs: list[Logprobs | None]) -> bytes:
        """The next tokens of a choice, and what their probabilities are if that was asked for."""
        teller = logprobs[choice]
        told = None if teller is None else teller.of(tokens).model_dump(mode="json")
        return self._chunk(choice, text="".join(token.text for token in tokens), logprobs=told)

    def _chunk(self, choice: int, *, text: str = "", logprobs: Any = None, finish_reason: str | None = None) -> bytes:
        said = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return frame(self._common | {"choices": [said]})

    def _end_frames(self, row: JobRow) -> bytes:
        error = end_error(row.job)
        if error is not None:
            return frame(error_body(error.status, error.message, code=error.code)) + DONE
        assert row.output is not None, "a succeeded job has an output"
        reasons = [each.finish_reason for each in choices_of(row.job, row.output)]
        return self._last_frames(reasons, _usage_of(row.job))

    def _last_frames(self, finish_reasons: Sequence[str | None], usage: CompletionUsage) -> bytes:
        last = b"".join(self._chunk(i, finish_reason=reason) for i, reason in enumerate(finish_reasons))
        if self.body.includes_usage:
            last += frame(self._common | {"choices": [], "usage": usage.model_dump(mode="json")})
        return last + DONE


def _by_choice(tokens: list[Token]) -> Iterable[tuple[int, list[Token]]]:
    """The tokens of each choice that has some."""
    found: dict[int, list[Token]] = {}
    for token in tokens:
        found.setdefault(token.choice, []).append(token)
    return found.items()


def end_error(job: Job) -> ApiError | None:
    """The error that an ended job is to a client that waits for its text; None when it succeeded."""
    if job.status == Status.SUCCEEDED:
        return None
    status = 504 if job.status == Status.EXPIRED else 500
    message = f"The job ended as {job.status}{_detail(job)}."
    return ApiError(status, message, code=job.error_code or f"job_{job.status}", headers=NO_RETRY)


def _detail(job: Job) -> str:
    if job.error_message:
        return f": {job.error_message.removesuffix('.')}"
    return f" after {job.num_output_tokens} of its tokens" if job.num_output_tokens else " before its first token"


def _usage_of(job: Job) -> CompletionUsage:
    """Of a job that has ended."""
    return _usage(job, job.num_output_tokens or 0, job.num_cached_tokens or 0)


def _usage(job: Job, num_output: int, num_cached: int) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=job.num_prompt_tokens,
        completion_tokens=num_output,
        total_tokens=job.num_prompt_tokens + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )
