"""A client that waits for what its jobs write: one answer at the end, or chunks of it.

How the answer is spelled is its dress's business. The jobs are cancelled if the client leaves.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from api.auth import Caller
from api.cancel import cancel
from api.errors import NO_RETRY, ApiError, error_body
from api.follow import Ended, Started, Succeeded, Tokens, follow, wait_for_end
from api.leaving import CLIENT_GONE, until_disconnect
from api.merge import merge
from api.openai_usage import CompletionUsage, total, usage_of, usage_with
from api.output import choices_of
from api.services import Services
from api.sse import DONE, EventResponse, frame
from db.job_queries import JobRow
from db.models import Job, Status
from db.stream import Token


class Dress(Protocol):
    """How the jobs of one request are told. A job is named by its place among them."""

    async def prepare(self) -> None:
        """Read what the rest needs; it is called once, before the rest."""

    def whole(self, rows: Sequence[JobRow]) -> dict[str, Any]:
        """The answer, of jobs that have all succeeded."""

    def told(self, place: int, tokens: Sequence[Token]) -> bytes:
        """Frames of a job's next tokens; maybe none."""

    def ended(self, place: int, finish_reasons: Sequence[str | None]) -> bytes:
        """Frames of a job's end, with the reason of each of its choices."""

    def used(self, usage: CompletionUsage) -> bytes:
        """The last frame, if one was asked for."""


class Foreground:
    """Jobs that a client waits for. When the client leaves before the end, they are cancelled.

    That is for whoever answers to say, by `abandon`, once nobody waits any more: `answer` for itself, and for the
    frames the response that sends them, as a client may leave before the first of them is asked for.
    """

    def __init__(
        self, services: Services, caller: Caller, rows: Sequence[JobRow], dress: Dress, *, is_kept: bool
    ) -> None:
        self.services = services
        self.caller = caller
        self.rows = rows
        self.dress = dress
        # Jobs to cancel when the client leaves; written by whoever sees one end, or abandons them.
        self.unended = set() if is_kept else {row.job.id for row in rows}
        self._usages: list[CompletionUsage] = []  # of the jobs that are over; written by `frames`

    async def respond(self, request: Request, *, is_streamed: bool) -> Response:
        """The answer, as it comes or whole."""
        if is_streamed:
            return EventResponse(self.frames(), on_over=self.abandon)
        return await self.answer(request)

    async def answer(self, request: Request) -> Response:
        """The whole answer."""
        ends: asyncio.Future[list[JobRow]] = asyncio.gather(*(self._end(row) for row in self.rows))
        gone: asyncio.Future[Any] = asyncio.create_task(until_disconnect(request.receive))
        try:
            await asyncio.wait([ends, gone], return_when=asyncio.FIRST_COMPLETED)
            if not ends.done():
                return Response(status_code=CLIENT_GONE)
            rows = ends.result()
            await self.dress.prepare()
        finally:
            gone.cancel()
            ends.cancel()
            self.abandon()
        return JSONResponse(self.dress.whole(rows))

    async def frames(self) -> AsyncGenerator[bytes]:
        """What the dress tells of tokens and ends as they come, one with the usage if wanted, and `[DONE]`."""
        await self.dress.prepare()
        async with aclosing(self._followed()) as followed:
            async for place, item in followed:
                if isinstance(item, Tokens) and (told := self.dress.told(place, item.tokens)):
                    yield told
                elif isinstance(item, Succeeded | Ended):
                    self.unended.discard(self.rows[place].job.id)
                    error = end_error(item.row.job) if isinstance(item, Ended) else None
                    if error is not None:
                        yield frame(error_body(error.status, error.message, code=error.code)) + DONE
                        return
                    yield self._end_frames(place, item)

    def abandon(self) -> None:
        """Cancel the jobs that are not over."""
        for job_id in self.unended:
            self.services.in_background(cancel(self.services, self.caller.tenant, job_id))
        self.unended = set()

    async def _followed(self) -> AsyncGenerator[tuple[int, Started | Tokens | Succeeded | Ended]]:
        """What happens to the jobs, each thing with its job's place."""
        sources = [follow(self.services, row, wants_rows=False) for row in self.rows]
        if len(sources) > 1:
            async with aclosing(merge(sources)) as merged:
                async for place, item in merged:
                    yield place, item
            return
        async with aclosing(sources[0]) as source:  # as nearly always: it needs no task
            async for item in source:
                yield 0, item

    def _end_frames(self, place: int, item: Succeeded | Ended) -> bytes:
        """Of a job that has succeeded; of the last of them also the usage of all."""
        if isinstance(item, Succeeded):
            reasons: Sequence[str | None] = item.success.finish_reasons
            usage = usage_with(self.rows[place].job, item.num_tokens, item.success.num_cached_tokens)
        else:
            assert item.row.output is not None, "a succeeded job has an output"
            reasons = [each.finish_reason for each in choices_of(item.row.job, item.row.output)]
            usage = usage_of(item.row.job)
        self._usages.append(usage)
        is_last = len(self._usages) == len(self.rows)
        return self.dress.ended(place, reasons) + (self.dress.used(total(self._usages)) + DONE if is_last else b"")

    async def _end(self, row: JobRow) -> JobRow:
        """The job once it has succeeded; the error that another end is."""
        ended = await wait_for_end(self.services, row, timeout_seconds=None)
        self.unended.discard(row.job.id)
        error = end_error(ended.job)
        if error is not None:
            raise error
        return ended


def by_choice(tokens: Sequence[Token]) -> dict[int, list[Token]]:
    """The tokens of each choice that has some."""
    found: dict[int, list[Token]] = {}
    for token in tokens:
        found.setdefault(token.choice, []).append(token)
    return found


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
