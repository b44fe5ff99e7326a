"""The types of webhook events, and what a test of one sends."""

from typing import Any, Literal, get_args
from uuid import UUID

from db.ids import public_id

EventType = Literal[
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "job.expired",
    "job.dead",
]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
# What the OpenAI clients know. They parse a type that is not theirs as some other one: ours go only to whom asks.
OPENAI_TYPES = tuple(name for name in EVENT_TYPES if not name.startswith("job."))

# An end of the row `jobs` as the API that made it names it. A response that ran out of time, or crashed too often, has
# failed; one that was cut at `max_tokens` is incomplete.
TYPE_OF_JOB = """
    CASE WHEN kind <> 'response' THEN 'job.' || status
         WHEN status = 'succeeded' AND finish_reason = 'length' THEN 'response.incomplete'
         WHEN status = 'succeeded' THEN 'response.completed'
         WHEN status = 'cancelled' THEN 'response.cancelled'
         ELSE 'response.failed' END
"""
PREFIXES = {"response": "resp_", "batch": "batch_", "job": "job_"}


def sample_data(event_type: str, subject_id: UUID) -> dict[str, Any]:
    """The `data` of a test event: it is about `subject_id`, which does not exist."""
    kind, _, end = event_type.partition(".")
    data = {"id": public_id(PREFIXES[kind], subject_id)}
    return data | {"object": "job", "status": end} if kind == "job" else data
