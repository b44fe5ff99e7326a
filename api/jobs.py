"""The job API: submit, look, wait, list, cancel, delete."""

import re
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Request, Response

from api.auth import CallerDep
from api.cancel import cancel
from api.errors import NO_RETRY, ApiError, invalid, not_found
from api.examples import JOB_EXAMPLES
from api.fields import MAX_METADATA_PAIRS, ModelName, Moment, Tier
from api.follow import find_job, wait_for_end
from api.job_view import PREFIX, live_view, view_of
from api.pages import parse_after
from api.schemas import DeletedJob, JobCreate, JobId, JobList, JobView, StatusName, error_replies
from api.services import ServicesDep
from api.submission import Submission
from api.submit import submit
from db import job_queries, jobs
from db.ids import public_id
from db.job_filter import JobFilter
from db.models import ENDED, Status
from db.settings import TIERS

DEFAULT_MAX_TOKENS = 256
MAX_WAIT_SECONDS = 60
METADATA_PARAMETER = re.compile(r"metadata\[(.+)\]")
METADATA_IN_SCHEMA = {  # its names are the client's, so FastAPI cannot declare it
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "Only jobs that carry all of these pairs, sent as `metadata[key]=value`.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}

router = APIRouter(tags=["Jobs"])

WAIT_HEADER = Header(
    alias="Prefer",
    description="`wait=N` answers once the job has ended, at the latest after N seconds (at most 60).",
    examples=["wait=10"],
)
IDEMPOTENCY_HEADER = Header(
    alias="Idempotency-Key",
    description="Any text of your choice, unique per job: sending the same body with it again, after a timeout "
    "for example, returns the first job instead of making another.",
)
JOB_HEADERS = {"Location": {"description": "The job's path.", "schema": {"type": "string"}}}


@router.post(
    "/v1/jobs",
    status_code=202,
    summary="Submit a job",
    response_description="The job, accepted.",
    responses={202: {"headers": JOB_HEADERS}, **error_replies(400, 401, 404, 408, 413, 422, 429, 503)},
)
async def submit_job(
    services: ServicesDep,
    caller: CallerDep,
    response: Response,
    body: Annotated[JobCreate, Body(openapi_examples=JOB_EXAMPLES)],
    idempotency_key: Annotated[str | None, IDEMPOTENCY_HEADER] = None,
) -> JobView:
    """Queue a generation, or an embedding, and return at once with its place. Accepted means kept: it reaches an end.

    The prompt is counted in tokens here, and what can never fit the model is refused with the numbers.
    """
    row = await submit(services, caller, _submission(body, idempotency_key))
    view = await live_view(services, row)
    response.headers["Location"] = view.links.self
    return view


@router.get(
    "/v1/jobs/{job_id}",
    summary="Get a job",
    response_description="The job.",
    responses=error_replies(400, 401, 404, 503),
)
async def get_job(
    services: ServicesDep,
    caller: CallerDep,
    response: Response,
    job_id: JobId,
    prefer: Annotated[str | None, WAIT_HEADER] = None,
) -> JobView:
    """The job as it stands: its place while it waits, its output once it has ended."""
    row = await find_job(services, caller.tenant, job_id)
    wait = _parse_wait(prefer)
    if wait is not None:
        response.headers["Preference-Applied"] = f"wait={wait}"
        if row.job.status not in ENDED:
            row = await wait_for_end(services, row, timeout_seconds=wait)
    return await live_view(services, row)


@router.get(
    "/v1/jobs",
    summary="List jobs",
    response_description="The page.",
    responses=error_replies(400, 401, 503),
    openapi_extra={"parameters": [METADATA_IN_SCHEMA]},
)
async def list_jobs(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    after: Annotated[str | None, Query(description="Id of the last job of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Most jobs in the page.")] = 20,
    status: Annotated[StatusName | None, Query(description="Only jobs in this status.")] = None,
    tier: Annotated[Tier | None, Query(description="Only jobs of this tier.")] = None,
    model: Annotated[ModelName | None, Query(description="Only jobs of this model.")] = None,
    since: Annotated[Moment | None, Query(description="Only jobs that ended then or later (RFC 3339).")] = None,
    until: Annotated[Moment | None, Query(description="Only jobs that ended before (RFC 3339).")] = None,
    replayed: Annotated[
        bool | None, Query(description="`false`: only jobs without a replay; `true`: only those with one.")
    ] = None,
) -> JobList:
    """Your jobs, newest first, in pages. `metadata[key]=value`, also several of them, selects by your own pairs.

    `status=dead&replayed=false` is the dead-letter list: each with its reason, and its `crashes` with their workers.
    """
    wanted = JobFilter(
        status=None if status is None else Status(status),
        tier=None if tier is None else TIERS.index(tier),
        model=model,
        metadata=_metadata_filter(request),
        since=since,
        until=until,
        is_replayed=replayed,
    )
    async with services.sessions() as session:
        rows = await job_queries.list_jobs(
            session,
            caller.tenant,
            wanted=wanted,
            after=parse_after(after, PREFIX),
            limit=limit + 1,  # one more tells whether there is a next page
        )
    return JobList.of([view_of(row) for row in rows], limit=limit)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    response_description="The job: ended, or still running where its worker has not answered yet.",
    responses=error_replies(401, 404, 503),
)
async def cancel_job(services: ServicesDep, caller: CallerDep, job_id: JobId) -> JobView:
    """End the job as `cancelled`, keeping what it wrote. A job that has ended already is returned as it is.

    The cancel is noted before this answers. A job that is still `running` in the answer ends when its worker, or the
    sweep in its place, reads the note: while Redis is away nobody else knows what the job has delivered.
    """
    row = await find_job(services, caller.tenant, job_id)
    return view_of(await cancel(services, caller.tenant, row.job.id))


@router.delete(
    "/v1/jobs/{job_id}",
    summary="Delete a job",
    response_description="It is deleted.",
    responses=error_replies(401, 404, 409, 503),
)
async def delete_job(services: ServicesDep, caller: CallerDep, job_id: JobId) -> DeletedJob:
    """Delete an ended job with its prompt and output. A job that has not ended is to be cancelled first (409)."""
    row = await find_job(services, caller.tenant, job_id)
    async with services.sessions() as session:
        try:
            is_deleted = await jobs.delete(session, caller.tenant, row.job.id)
        except jobs.JobNotEnded as error:
            message = f"The job is {row.job.status}; cancel it first, or wait for its end."
            raise ApiError(409, message, code="job_not_ended", headers=NO_RETRY) from error
        await session.commit()
    if not is_deleted:
        raise not_found("job", job_id)
    return DeletedJob(id=public_id(PREFIX, row.job.id))


def _submission(body: JobCreate, idempotency_key: str | None) -> Submission:
    messages = None if body.messages is None else [message.as_template_variable() for message in body.messages]
    writes = body.kind == "job"
    return Submission(
        kind=body.kind,
        sent=body,
        prompt=body.prompt,
        messages=messages,
        max_tokens=body.max_tokens if writes else 0,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=body.stream and writes,
        idempotency_key=idempotency_key,
        tools=body.tool_use,
        template_variables=body.chat_template_kwargs,
    )


def _parse_wait(prefer: str | None) -> int | None:
    """The seconds of `Prefer: wait=N` (RFC 7240); other preferences are none of ours and are ignored, as it asks."""
    for preference in (prefer or "").split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            digits = value.strip().strip('"')
            if not digits.isascii() or not digits.isdecimal():
                raise invalid(f"Prefer: wait takes whole seconds, not '{digits[:40]}'.", param="Prefer")
            return min(MAX_WAIT_SECONDS, int(digits[:9]))
    return None


def _metadata_filter(request: Request) -> dict[str, str]:
    """The `metadata[key]=value` parameters, which have no fixed names and so are read by hand."""
    pairs: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        match = METADATA_PARAMETER.fullmatch(name)
        if match:
            pairs[match[1]] = value
    if len(pairs) > MAX_METADATA_PAIRS or any("\x00" in text for pair in pairs.items() for text in pair):
        raise invalid(f"Filter by at most {MAX_METADATA_PAIRS} metadata pairs, without U+0000.", param="metadata")
    return pairs
