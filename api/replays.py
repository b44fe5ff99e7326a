"""The replay API: an ended job submitted again, or many of them by filter. Dead letters leave their list this way."""

from typing import Annotated

from fastapi import APIRouter, Body, Header, Response

from api.auth import CallerDep
from api.errors import error_body
from api.job_view import PREFIX, live_view
from api.jobs import IDEMPOTENCY_HEADER, JOB_HEADERS
from api.pages import parse_after
from api.replay import Outcome, Selection, replay, replay_page
from api.replay_schemas import Replay, ReplayLimits, ReplayList, ReplayMany
from api.schemas import ErrorDetail, JobId, JobView, error_replies
from api.services import ServicesDep
from api.submission import check_idempotency_key
from db.ids import public_id
from db.job_filter import JobFilter
from db.models import Status
from db.settings import TIERS

router = APIRouter(tags=["Jobs"])

MANY_HEADER = Header(
    alias="Idempotency-Key",
    description="Any text of your choice: under it each job is replayed at most once, however often the call is "
    "repeated, and a repeat answers with the same pairs of ids. One key serves for all pages.",
)


@router.post(
    "/v1/jobs/replay",
    status_code=202,
    summary="Replay many jobs",
    response_description="The replays, accepted.",
    responses=error_replies(400, 401, 408, 413, 422, 429, 503),
)
async def replay_jobs(
    services: ServicesDep,
    caller: CallerDep,
    body: Annotated[ReplayMany | None, Body()] = None,
    idempotency_key: Annotated[str | None, MANY_HEADER] = None,
) -> ReplayList:
    """Submit ended jobs again that match a filter; without one, every `dead` job that was not replayed yet.

    At most 100 in a call, the oldest first: while `has_more`, call again with `after` set to `last_id`. Each page is
    all or nothing, and counts against the limits of the queue as any submit.
    """
    body = body or ReplayMany()
    check_idempotency_key(idempotency_key)
    selection = Selection(
        wanted=_filter(body), limit=body.limit, after=parse_after(body.after, PREFIX), idempotency_key=idempotency_key
    )
    page = await replay_page(services, caller, selection, body.limits())
    return ReplayList(
        data=[_replay(outcome) for outcome in page.outcomes],
        last_id=None if page.last_id is None else public_id(PREFIX, page.last_id),
        has_more=page.has_more,
    )


@router.post(
    "/v1/jobs/{job_id}/replay",
    status_code=202,
    summary="Replay a job",
    response_description="The new job, accepted.",
    responses={202: {"headers": JOB_HEADERS}, **error_replies(400, 401, 404, 408, 409, 413, 422, 429, 503)},
)
async def replay_job(
    services: ServicesDep,
    caller: CallerDep,
    response: Response,
    job_id: JobId,
    body: Annotated[ReplayLimits | None, Body()] = None,
    idempotency_key: Annotated[str | None, IDEMPOTENCY_HEADER] = None,
) -> JobView:
    """Submit an ended job again: a new job with the same prompt, sampling, seed, tier, metadata and webhook URL.

    Its `replay_of` names the old one, which stays as it ended. Limits in time are fresh: only what you send, and the
    old job's `run_for`. Any ended job may be replayed, as often as you like.
    """
    check_idempotency_key(idempotency_key)
    fresh = (body or ReplayLimits()).limits()
    row = await replay(services, caller, job_id, fresh, idempotency_key=idempotency_key)
    view = await live_view(services, row)
    response.headers["Location"] = view.links.self
    return view


def _filter(body: ReplayMany) -> JobFilter:
    return JobFilter(
        status=Status(body.status),
        tier=None if body.tier is None else TIERS.index(body.tier),
        model=body.model,
        metadata=body.metadata,
        since=body.since,
        until=body.until,
        is_replayed=None if body.include_replayed else False,
    )


def _replay(outcome: Outcome) -> Replay:
    created, refusal = outcome.created, outcome.refusal
    error = None
    if refusal is not None:
        told = error_body(refusal.status, refusal.message, code=refusal.code, param=refusal.param)
        error = ErrorDetail.model_validate(told["error"])
    return Replay(
        job_id=public_id(PREFIX, outcome.job_id),
        replay_id=None if created is None else public_id(PREFIX, created.job.id),
        error=error,
    )
