"""GET /v1/jobs/{id}/events: a job's life as server-sent events, resumable from any of them.

Numbers depend on the job alone: 0 queued, 1 started, 2 + i token i, then the end. Redis and Postgres tell the same.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from api.auth import CallerDep
from api.errors import invalid
from api.follow import Ended, Started, Tokens, find_job, follow, has_started
from api.job_view import PREFIX, view_of
from api.schemas import JobId, error_replies
from api.services import Services, ServicesDep
from api.sse import EventResponse, frame
from api.token_events import FIRST_TOKEN, TokenEvents
from db.ids import public_id
from db.job_queries import JobRow
from db.models import ENDED

MAX_CURSOR_DIGITS = 12
EXAMPLE = """event: job.queued
id: 0
data: {"id":"job_0193e4c2a1b47c3d8e5f60718293a4b5","status":"queued","created_at":"2026-01-01T12:00:00Z"}

event: job.started
id: 1
data: {"id":"job_0193e4c2a1b47c3d8e5f60718293a4b5","status":"running","started_at":"2026-01-01T12:00:01Z"}

event: job.token
id: 2
data: {"index":0,"choice":0,"token_id":506,"text":" the","logprobs":null}

event: job.succeeded
id: 3
data: {"id":"job_0193e4c2a1b47c3d8e5f60718293a4b5","object":"job","status":"succeeded", ...}

"""

router = APIRouter(tags=["Jobs"])


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=Response,
    responses={
        200: {"description": "The events.", "content": {"text/event-stream": {"example": EXAMPLE}}},
        204: {"description": "Nothing follows the cursor: it names the last event of a job that has ended."},
        **error_replies(400, 401, 404, 503),
    },
)
async def follow_job(
    services: ServicesDep,
    caller: CallerDep,
    job_id: JobId,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Number of the last event seen; browsers send it.")
    ] = None,
    after: Annotated[str | None, Query(description="The same as a parameter; the header goes before it.")] = None,
) -> Response:
    """Server-sent events: `job.queued`, `job.started`, one `job.token` per token, and last `job.<status>` with the job.

    Every event has a number. A reader that was cut off sends the last one it saw as `Last-Event-ID` and misses nothing,
    whatever crashed meanwhile, for as long as the job is kept. A job submitted with `stream: false` has no token
    events. Tokens of a job with several outputs come in turn, each with its `choice`. Leaving does not cancel the job.

    Where a job has tools, a token's event has a `delta` beside its text: what it adds to the `content` and to the
    `tool_calls`, in pieces as chat's chunks have them; null where that cannot be told yet. The last event has all.

    Comments (`: keepalive`) come every 15 seconds.
    """
    row = await find_job(services, caller.tenant, job_id)
    cursor = _parse_cursor(last_event_id, "Last-Event-ID") if last_event_id else _parse_cursor(after, "after")
    next_number = 0 if cursor is None else cursor + 1
    if row.job.status in ENDED and next_number > _end_number(row):
        return Response(status_code=204)  # tells a browser's EventSource not to come back
    return EventResponse(_frames(services, row, next_number))


def _parse_cursor(text: str | None, param: str) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_CURSOR_DIGITS:
        message = f"{param} is '{text[:40]}'; it must be the number of an event, of at most {MAX_CURSOR_DIGITS} digits."
        raise invalid(message, param=param)
    return int(text)


async def _frames(services: Services, row: JobRow, next_number: int) -> AsyncGenerator[bytes]:
    """The events numbered `next_number` and above. Those that are there already leave in one piece."""
    has_tokens, told = row.job.stream, TokenEvents(row)
    first_index = 0 if told.has_calls or not has_tokens else max(0, next_number - FIRST_TOKEN)
    if next_number == 0:
        yield frame(_moment(row, "queued", created_at=row.job.created_at), event="job.queued", number=0)
    async for item in follow(services, row, first_index=first_index):
        if isinstance(item, Started) and next_number <= 1:
            started = _moment(item.row, "running", started_at=item.row.job.started_at)
            yield frame(started, event="job.started", number=1)
        elif isinstance(item, Tokens) and has_tokens:
            if frames := told.frames(item, next_number):
                yield frames
            else:  # read again for what follows: nobody is sent it, so nothing else would let the others have a turn
                await asyncio.sleep(0)
        elif isinstance(item, Ended):
            view = view_of(item.row).model_dump(mode="json")
            yield frame(view, event=f"job.{item.row.job.status}", number=_end_number(item.row))


def _moment(row: JobRow, status: str, **at: Any) -> dict[str, Any]:
    (name, time), *_ = at.items()
    spelled = None if time is None else time.isoformat().replace("+00:00", "Z")  # None: handed back before it wrote
    return {"id": public_id(PREFIX, row.job.id), "status": status, name: spelled}


def _end_number(row: JobRow) -> int:
    """How many events come before the end of an ended job, so that numbers have no gap."""
    if not has_started(row.job):
        return 1
    return FIRST_TOKEN + ((row.job.num_output_tokens or 0) if row.job.stream else 0)
