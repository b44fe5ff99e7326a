"""A client that waits for its text: one answer at the end, or a chunk per token; its job is cancelled if it leaves."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from api.auth import Caller
from api.cancel import cancel
from api.completion_schemas import (
    Choice,
    Completion,
    CompletionCreate,
    CompletionLogprobs,
    CompletionUsage,
    PromptTokensDetails,
)
from api.errors import NO_RETRY, ApiError, error_body
from api.follow import Ended, Tokens, follow, wait_for_end
from api.job_view import tokens_of
from api.services import Services
from api.sse import DONE, frame
from api.submit import find_card
from db.ids import public_id
from db.job_queries import JobRow
from db.models import Job, Status
from db.stream import Token
from workers.text.tokenizer import Tokenizer

PREFIX = "cmpl-"
CLIENT_GONE = 499  # nginx's status for it; nobody receives it


class Foreground:
    """A completion that a client waits for. When the client leaves before the end, the job is cancelled."""

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
        """One chunk per token, one with the reason of the end, one with the usage if wanted, then `[DONE]`."""
        try:
            logprobs = await self._logprobs()
            async for item in follow(self.services, self.row):
                if isinstance(item, Tokens):
                    yield b"".join(self._token_frame(token, logprobs) for token in item.tokens)
                elif isinstance(item, Ended):
                    self.is_over = True
                    yield self._end_frames(item.row)
        finally:
            self.abandon()

    async def on_close(self, _: Any) -> None:
        self.abandon()

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
        logprobs = await self._logprobs()
        choice = Choice(
            text=output.text,
            logprobs=None if logprobs is None else logprobs.of(tokens_of(output)),
            finish_reason=self.row.job.finish_reason,
        )
        return JSONResponse(self.completion.chunk([choice], _usage(self.row.job)))

    async def _logprobs(self) -> "Logprobs | None":
        if self.body.logprobs is None:
            return None
        card = await find_card(self.services, self.row.job.model)
        return Logprobs(await self.services.texts.tokenizer(card), num_top=self.body.logprobs)

    def _token_frame(self, token: Token, logprobs: "Logprobs | None") -> bytes:
        choice = Choice(text=token.text, logprobs=None if logprobs is None else logprobs.of([token]))
        return frame(self.completion.chunk([choice]))

    def _end_frames(self, row: JobRow) -> bytes:
        error = end_error(row.job)
        if error is not None:
            return frame(error_body(error.status, error.message, code=error.code)) + DONE
        last = frame(self.completion.chunk([Choice(text="", finish_reason=row.job.finish_reason)]))
        options = self.body.stream_options
        if options is not None and options.include_usage:
            last += frame(self.completion.chunk([], _usage(row.job)))
        return last + DONE


class Logprobs:
    """Turns the log probabilities of a choice's tokens into OpenAI's lists; keeps where the text stands."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0  # characters of text before the next token

    def of(self, tokens: list[Token]) -> CompletionLogprobs:
        """Of the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        entries = [token.logprobs or {"logprob": 0.0, "top": []} for token in tokens]
        top = [{self._text(token_id): logprob for token_id, logprob in entry["top"]} for entry in entries]
        return CompletionLogprobs(
            tokens=[self._text(token.token_id) for token in tokens],
            token_logprobs=[entry["logprob"] for entry in entries],
            top_logprobs=top if self._num_top else None,
            text_offset=offsets,
        )

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def end_error(job: Job) -> ApiError | None:
    """The error that an ended job is to a client that waits for its text; None when it succeeded."""
    if job.status == Status.SUCCEEDED:
        return None
    status = 504 if job.status == Status.EXPIRED else 500
    message = f"The job ended as {job.status}: {job.error_message or 'no text was completed'}."
    return ApiError(status, message, code=job.error_code or f"job_{job.status}", headers=NO_RETRY)


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
