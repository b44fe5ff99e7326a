"""The lines of a batch's output and error files, as OpenAI spells them."""

import json
from typing import Any, Literal
from uuid import UUID, uuid4

from api.errors import ApiError, error_body
from db.batch_lines import Line, LineResult
from db.models import Job

NOT_RUN = {
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
}  # the status of a line that did not run, or not to its end: the error's code and message
LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # what Python's splitlines() takes for such


def answered(line: Line, job: Job, body: dict[str, Any]) -> LineResult:
    """Of a line whose job succeeded."""
    result = _line(line, job.id, response=_response(200, job.id, body))
    return LineResult(line.line, "completed", result, **_tokens(job))


def refused(line: Line, error: ApiError, job: Job | None = None) -> LineResult:
    """Of a line that was refused, or whose job did not succeed: what a client would have got."""
    body = error_body(error.status, error.message, code=error.code, param=error.param)
    some_id = _id_of(job)
    result = _line(line, some_id, response=_response(error.status, some_id, body))
    return LineResult(line.line, "failed", result, **_tokens(job))


def stopped(line: Line, job: Job | None, *, is_cancelled: bool) -> LineResult:
    """Of a line that its batch's end kept from running, or its job from ending."""
    status: Literal["cancelled", "expired"] = "cancelled" if is_cancelled else "expired"
    code, message = NOT_RUN[status]
    result = _line(line, _id_of(job), error={"code": code, "message": message})
    return LineResult(line.line, status, result, **_tokens(job))


def _response(status_code: int, some_id: UUID, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status_code, "request_id": f"req_{some_id.hex}", "body": body}


def _line(line: Line, some_id: UUID, *, response: Any = None, error: Any = None) -> str:
    said = {"id": f"batch_req_{some_id.hex}", "custom_id": line.custom_id, "response": response, "error": error}
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).translate(LINE_ENDS)
    return text.encode(errors="replace").decode()  # half of a surrogate pair, which JSON can spell and nobody can store


def _id_of(job: Job | None) -> UUID:
    """GET /v1/jobs/job_... with the same digits shows the job, where there was one."""
    return uuid4() if job is None else job.id


def _tokens(job: Job | None) -> dict[str, int]:
    if job is None:
        return {}
    return {
        "input_tokens": job.num_prompt_tokens,
        "output_tokens": job.num_output_tokens or 0,
        "cached_tokens": job.num_cached_tokens or 0,
    }
