"""A job's row as an OpenAI response."""

from typing import Any

from api.chat.choice import Reading
from api.openai_fields import USED_TIERS
from api.responses.messages import PREFIX
from api.responses.reading import output_items
from db.ids import public_id
from db.job_queries import JobRow
from db.models import Job, Status

AS_SENT = (
    *("background", "instructions", "max_output_tokens", "parallel_tool_calls", "previous_response_id"),
    *("store", "text", "tool_choice", "tools", "top_logprobs", "truncation", "user"),
)
STATUS: dict[str, str] = {
    Status.QUEUED: "queued",
    Status.RUNNING: "in_progress",
    Status.SUCCEEDED: "completed",
    Status.CANCELLED: "cancelled",
}  # others: failed


def response_of(row: JobRow, reading: Reading, *, status: str | None = None) -> dict[str, Any]:
    """The response as it stands, or as it was while it had another `status`."""
    assert row.input.request is not None, "a response has what was sent"
    job, sent = row.job, row.input.request
    status = status or status_of(row)
    is_ended = status not in ("queued", "in_progress")
    return {
        "id": public_id(PREFIX, job.id),
        "object": "response",
        "created_at": job.created_at.timestamp(),
        "completed_at": job.ended_at.timestamp() if job.ended_at is not None and status == "completed" else None,
        "status": status,
        "model": job.model,
        "output": output_items(row, reading) if is_ended else [],
        "error": _error(job) if status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": _usage(job) if is_ended else None,
        "service_tier": USED_TIERS[job.tier],
        "metadata": row.input.metadata_,
        "temperature": row.input.sampling["temperature"],
        "top_p": row.input.sampling["top_p"],
        **{name: sent[name] for name in AS_SENT},
    }


def status_of(row: JobRow) -> str:
    """OpenAI's word for it."""
    if row.job.status == Status.SUCCEEDED and row.job.finish_reason == "length":
        return "incomplete"
    return STATUS.get(row.job.status, "failed")


def _error(job: Job) -> dict[str, Any]:
    """Why it failed; `code` is one that OpenAI has, ours begins the message."""
    ours = job.error_code or f"job_{job.status}"
    return {"code": "server_error", "message": f"{ours}: {job.error_message or f'the job is {job.status}'}"}


def _usage(job: Job) -> dict[str, Any]:
    num_output = job.num_output_tokens or 0
    return {
        "input_tokens": job.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": job.num_cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.num_prompt_tokens + num_output,
    }
