"""A job's row as its JSON."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from api.chat.choice import Reading, message_of
from api.kept_spelling import spelling_in
from api.output import ChoiceOutput, choices_of
from api.pace import estimate
from api.schemas import Crash, JobChoice, JobError, JobOutput, JobView, Links, Usage
from api.services import Services
from db import job_queries
from db import models as tables
from db.ids import public_id
from db.job_queries import JobRow
from db.models import ENDED, Job, Status
from db.settings import TIERS

PREFIX, WORKER_PREFIX = "job_", "worker_"


def view_of(row: JobRow) -> JobView:
    """The job without what only a queued one has, its position and estimate."""
    job, sent = row.job, row.input
    is_ended = job.status in ENDED
    return JobView.model_validate(
        {
            **{name: getattr(job, name) for name in _SAME_NAME},
            "id": public_id(PREFIX, job.id),
            "tier": TIERS[job.tier],
            "position": None,
            "estimate": None,
            "n": job.num_choices,
            "output": _output(row, row.output) if is_ended and row.output is not None else None,
            "usage": _usage(job) if is_ended else None,
            "error": _error(job) if is_ended else None,
            "crashes": [_crash(crash) for crash in job.crash_log or []],
            "replay_of": None if job.replay_of is None else public_id(PREFIX, job.replay_of),
            "metadata": sent.metadata_,
            "webhook_url": sent.webhook_url,
            "links": _links(public_id(PREFIX, job.id)),
        }
    )


async def live_view(services: Services, row: JobRow) -> JobView:
    """The job with its place in the queue and when it will probably start."""
    view = view_of(row)
    if row.job.status != Status.QUEUED:
        return view
    now, position = datetime.now(UTC), row.position
    if position is None:
        async with services.autocommit() as session:
            position = await job_queries.position(session, row.job, services.settings)
            if position is None:  # it started in between
                latest = await job_queries.get(session, row.job.tenant, row.job.id)
                return view if latest is None else view_of(latest)
    pace = await services.pace(row.job.model)
    waited = None if row.job.ready_at is None else (now - row.job.ready_at).total_seconds()
    when = estimate(pace, position, tier=row.job.tier, waited_seconds=waited, now=now)
    return view.model_copy(update={"position": position, "estimate": when})


_SAME_NAME = (
    *("kind", "model", "status", "created_at", "ready_at", "started_at", "ended_at", "attempt"),
    *("start_by", "finish_by", "run_for", "seed", "max_tokens", "stream"),
)


def _output(row: JobRow, output: tables.JobOutput) -> JobOutput:
    has_logprobs, reading = output.logprobs is not None, Reading(row.job.id, spelling_in(row.input.request))
    views = [_choice(choice, reading, has_logprobs=has_logprobs) for choice in choices_of(row.job, output)]
    first = views[0].model_dump(exclude={"index"})
    return JobOutput.model_validate(
        {
            **first,
            "choices": views if len(views) > 1 else None,
            "prompt_logprobs": None if output.prompt_logprobs is None else [None, *output.prompt_logprobs],
            "embedding": output.embedding,
        }
    )


def _choice(choice: ChoiceOutput, reading: Reading, *, has_logprobs: bool) -> JobChoice:
    message = None if reading.spelling is None else message_of(reading, choice.index, choice.tokens)
    return JobChoice.model_validate(
        {
            "index": choice.index,
            "text": choice.text,
            "content": None if message is None else message.content,
            "tool_calls": None if message is None else message.tool_calls,
            "finish_reason": choice.finish_reason,
            "token_ids": choice.token_ids,
            "logprobs": choice.logprobs if has_logprobs else None,
        }
    )


def _usage(job: Job) -> Usage:
    num_output = job.num_output_tokens or 0
    return Usage(
        prompt_tokens=job.num_prompt_tokens,
        completion_tokens=num_output,
        total_tokens=job.num_prompt_tokens + num_output,
        cached_tokens=job.num_cached_tokens or 0,
    )


def _error(job: Job) -> JobError | None:
    if job.status == Status.SUCCEEDED:
        return None
    code = job.error_code or f"job_{job.status}"
    return JobError(code=code, message=job.error_message or f"The job ended as {job.status}.")


def _crash(crash: dict[str, Any]) -> Crash:
    return Crash(
        attempt=crash["attempt"],
        worker_id=public_id(WORKER_PREFIX, UUID(crash["worker"])),
        worker=crash.get("name"),
        at=crash["at"],
        tokens=crash["tokens"],
    )


def _links(public: str) -> Links:
    path = f"/v1/jobs/{public}"
    return Links.model_validate(
        {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel", "deliveries": f"{path}/deliveries"}
    )
