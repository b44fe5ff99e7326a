"""POST /v1/responses and what is done with a response later: OpenAI's newest dress of a job."""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth import Caller, CallerDep
from api.cancel import cancel
from api.chat.choice import Reading
from api.errors import invalid, not_found
from api.examples import RESPONSE_EXAMPLES
from api.follow import Ended, Started, Tokens, follow
from api.leaving import CLIENT_GONE, wait_unless_left
from api.openai_fields import IdempotencyKey
from api.responses.events import Event, ResponseEvents
from api.responses.messages import KIND, conversation_of, find_response
from api.responses.reading import reading_of
from api.responses.schemas import DEFAULT_MAX_TOKENS, DeletedResponse, ResponseCreate, ResponseObject
from api.responses.view import response_of
from api.schemas import error_replies
from api.services import Services, ServicesDep
from api.sse import EventResponse, stream_example
from api.submission import Submission
from api.submit import submit
from db import jobs
from db.job_queries import JobRow
from db.models import ENDED

EVENT_EXAMPLE = """event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_0193e4c2a1b47c3d8e5f60718293a4b5",\
"output_index":0,"content_index":0,"delta":" the","logprobs":[]}

"""
ResponseId = Annotated[str, Path(description="The response's id.", examples=["resp_0193e4c2a1b47c3d8e5f60718293a4b5"])]

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/responses",
    summary="Make a response",
    response_description="The response, or its events.",
    response_model=ResponseObject,
    responses={**stream_example(EVENT_EXAMPLE), **error_replies(400, 401, 404, 408, 413, 422, 429, 503)},
)
async def create_response(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    body: Annotated[ResponseCreate, Body(openapi_examples=RESPONSE_EXAMPLES)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """As OpenAI has it, for any OpenAI client. In the `background` it is answered while it is queued.

    Otherwise whoever leaves before the end cancels it. Its events can be read from any number on for as long as it is
    kept: `GET /v1/responses/{id}?stream=true&starting_after=N`.
    """
    row = await submit(services, caller, await submission_of(services, caller, body, idempotency_key))
    if body.background and not body.stream:
        return JSONResponse(response_of(row, await reading_of(services, row)))
    waiting = _Waiting(services, caller, row, body, is_kept=body.background or idempotency_key is not None)
    if body.stream:
        return EventResponse(waiting.frames(), on_over=waiting.abandon)
    return await waiting.answer(request)


@router.get(
    "/v1/responses/{response_id}",
    summary="Get a response",
    response_description="The response, or its events.",
    response_model=ResponseObject,
    responses={**stream_example(EVENT_EXAMPLE), **error_replies(400, 401, 404, 503)},
)
async def get_response(
    services: ServicesDep,
    caller: CallerDep,
    response_id: ResponseId,
    stream: Annotated[bool, Query(description="Send its events instead, live and from the past.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, le=2**53, description="Only events with a greater `sequence_number`; with `stream`.")
    ] = None,
    include: Annotated[
        list[str] | None,
        Query(alias="include[]", max_length=32, description="`message.output_text.logprobs`, where it was asked for."),
    ] = None,
    include_obfuscation: Annotated[bool, Query(description="Understood, and ignored.")] = False,
) -> Response:
    """The response as it stands, or with `stream` what happened to it after any number, and what happens."""
    row = await find_response(services, caller.tenant, response_id)
    reading = await reading_of(services, row)
    if stream:
        return EventResponse(_frames(services, row, reading, -1 if starting_after is None else starting_after))
    if starting_after is not None:
        raise invalid("'starting_after' is for 'stream=true'.", param="starting_after")
    return JSONResponse(response_of(row, reading))


@router.post(
    "/v1/responses/{response_id}/cancel",
    summary="Cancel a response",
    response_description="The response.",
    response_model=ResponseObject,
    responses=error_replies(400, 401, 404, 503),
)
async def cancel_response(services: ServicesDep, caller: CallerDep, response_id: ResponseId) -> Response:
    """End a response that runs in the background, keeping what it wrote. One that has ended is returned as it is."""
    row = await find_response(services, caller.tenant, response_id)
    assert row.input.request is not None
    is_waited_for = row.job.replay_of is None and row.job.batch_id is None  # by the request that made it
    if is_waited_for and not row.input.request["background"]:
        raise invalid("Responses can only be cancelled if they were created with background=true.", param="background")
    row = await cancel(services, caller.tenant, row.job.id)
    return JSONResponse(response_of(row, await reading_of(services, row)))


@router.delete(
    "/v1/responses/{response_id}",
    summary="Delete a response",
    response_description="It is deleted.",
    responses=error_replies(401, 404, 503),
)
async def delete_response(services: ServicesDep, caller: CallerDep, response_id: ResponseId) -> DeletedResponse:
    """Delete a response with what went in and what came out. One that has not ended is cancelled first."""
    row = await find_response(services, caller.tenant, response_id)
    if row.job.status not in ENDED:
        await cancel(services, caller.tenant, row.job.id)
    if not await _delete(services, caller, row):
        raise not_found("response", response_id)
    return DeletedResponse(id=response_id)


async def submission_of(
    services: Services, caller: Caller, body: ResponseCreate, idempotency_key: str | None
) -> Submission:
    """The job that it is. Raises ApiError, also about the responses before it."""
    conversation = await conversation_of(services, caller.tenant, body)
    return Submission(
        kind=KIND,
        sent=body,
        prompt=None,
        messages=conversation.messages,
        max_tokens=body.max_output_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=True,
        idempotency_key=idempotency_key,
        finish_by=body.last_moment(),
        tools=body.tool_use,
        template_variables=body.chat_template_kwargs,
        request=body.as_answered() | {"input": conversation.items},
    )


class _Waiting:
    """A response that a client waits for: when it leaves before the end, the job is cancelled."""

    def __init__(self, services: Services, caller: Caller, row: JobRow, body: ResponseCreate, *, is_kept: bool) -> None:
        self.services = services
        self.caller = caller
        self.row = row
        self.body = body
        self.is_over = is_kept  # nothing to cancel any more; set once, by whoever ends or abandons it

    async def answer(self, request: Request) -> Response:
        """The whole response, whatever became of it."""
        try:
            ended = await wait_unless_left(self.services, self.row, request)
            self.is_over = self.is_over or ended is not None
        finally:
            self.abandon()
        if ended is None:
            return Response(status_code=CLIENT_GONE)
        reading = await reading_of(self.services, ended)
        self._forget(ended)
        return JSONResponse(response_of(ended, reading))

    async def frames(self) -> AsyncGenerator[bytes]:
        """Its events."""
        reading = await reading_of(self.services, self.row)
        async for frames in _frames(self.services, self.row, reading, -1, on_end=self._end):
            yield frames

    def abandon(self) -> None:
        """Cancel the job unless it is over."""
        if not self.is_over:
            self.is_over = True
            self.services.in_background(cancel(self.services, self.caller.tenant, self.row.job.id))

    def _end(self, row: JobRow) -> None:
        self.is_over = True
        self._forget(row)

    def _forget(self, row: JobRow) -> None:
        """Delete what was not to be kept."""
        if not self.body.store:
            self.services.in_background(_delete(self.services, self.caller, row))


async def _frames(
    services: Services,
    row: JobRow,
    reading: Reading,
    after: int,
    *,
    on_end: Callable[[JobRow], None] | None = None,
) -> AsyncGenerator[bytes]:
    """The events numbered above `after`. Those that are there already leave in few pieces."""
    events = ResponseEvents(row, reading)

    def told(new: Iterable[Event]) -> bytes:
        return b"".join(event.frame() for event in new if event.number > after)

    yield told(events.opening())
    async for item in follow(services, row):
        if isinstance(item, Started):
            yield told(events.started())
        elif isinstance(item, Tokens):
            yield told(events.text(item.tokens))
        elif isinstance(item, Ended):
            if on_end is not None:
                on_end(item.row)
            yield told(events.ended(item.row))


async def _delete(services: Services, caller: Caller, row: JobRow) -> bool:
    async with services.sessions() as session:
        is_deleted = await jobs.delete(session, caller.tenant, row.job.id)
        await session.commit()
    return is_deleted
