"""What a response has written, as items."""

from typing import Any
from uuid import UUID

from api.output import choices_of
from api.response_logprobs import ResponseLogprobs
from db.ids import public_id
from db.job_queries import JobRow
from db.models import Status

Item = dict[str, Any]


def output_items(row: JobRow, logprobs: ResponseLogprobs | None = None) -> list[Item]:
    """The items of a response that has ended; none of one that wrote nothing before it was cut short."""
    is_success = row.job.status == Status.SUCCEEDED
    if row.output is None:
        return []
    (choice,) = choices_of(row.job, row.output)
    if not choice.tokens and not is_success:
        return []
    told = None if logprobs is None else logprobs.of(choice.tokens)
    status = "completed" if choice.finish_reason == "stop" else "incomplete"
    return [message_begun(row.job.id) | {"status": status, "content": [text_part(choice.text, told)]}]


def message_begun(job_id: UUID) -> Item:
    """The message before its text."""
    return {"id": message_id(job_id), "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def text_part(text: str, logprobs: list[Any] | None = None) -> Item:
    """A piece of a message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message_id(job_id: UUID) -> str:
    """The id of the message that a job writes."""
    return public_id("msg_", job_id)
