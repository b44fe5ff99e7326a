"""A client that waits for its text: one answer at the end, or a chunk per token; its job is cancelled if it leaves."""

import asyncio
from collections.abc import AsyncIterator

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
from api.follow import Ended, Tokens, follow, wait_for_end
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
CLIENT_GONE = 499  # nginx's status for it; nobody receives it


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

    async def answer(self, request: Request) -> Response:
        """The whole completion."""
        end = asyncio.create_task(wait_for_end(self.services, self.row, timeout_seconds=None))
        gone = asyncio.create_task(_until_disconnect(request))
        try:
            await asyncio.wait({end, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                return Response(status_code=CLIENT_GONE)
            self.row = end.result()
            self.is_over = True
        finally:
            gone.cancel()
            end.cancel()
            self.abandon()
        return await self._whole()

    async def frames(self) -> AsyncIterator[bytes]:
        """One chunk per token, one with the reason of each end, one with the usage if wanted, then `[DONE]`."""
        logprobs = [await self._logprobs() for _ in range(self.body.n)]
        async for item in follow(self.services, self.row):
            if isinstance(item, Tokens):
                yield b"".join(self._token_frame(token, logprobs[token.choice]) for token in item.tokens)
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
        return JSONResponse(self.completion.whole(choices, _usage(self.row.job), prompt_logprobs=prompt))

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

    def _token_frame(self, token: Token, logprobs: Logprobs | None) -> bytes:
        told = None if logprobs is None else logprobs.of([token])
        choice = Choice(index=token.choice, text=token.text, logprobs=told)
        return frame(self.completion.chunk([choice], has_usage=self.body.includes_usage))

    def _end_frames(self, row: JobRow) -> bytes:
        error = end_error(row.job)
        if error is not None:
            return frame(error_body(error.status, error.message, code=error.code)) + DONE
        assert row.output is not None, "a succeeded job has an output"
        has_usage = self.body.includes_usage
        ends = [Choice(index=each.index, finish_reason=each.finish_reason) for each in choices_of(row.job, row.output)]
        last = b"".join(frame(self.completion.chunk([end], has_usage=has_usage)) for end in ends)
        if has_usage:
            last += frame(self.completion.chunk([], _usage(row.job), has_usage=True))
        return last + DONE


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


def _usage(job: Job) -> CompletionUsage:
    num_output = job.num_output_tokens or 0
    return CompletionUsage(
        prompt_tokens=job.num_prompt_tokens,
        completion_tokens=num_output,
        total_tokens=job.num_prompt_tokens + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=job.num_cached_tokens or 0),
    )


async def _until_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
