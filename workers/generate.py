"""The Celery task that a generation is. Its argument is the job id; prompts and results stay in Postgres."""

from typing import Any

from db.broker import app
from db.jobs import End
from db.models import Status
from db.queue_message import TASK

ends: dict[str, End] = {}  # hub thread, by task id: how the job ended whose task body is about to run


class JobFailed(Exception):
    """The job ended without success; its row says why."""


@app.task(name=TASK, ignore_result=True, acks_late=False, throws=(JobFailed,), max_retries=0)
def generate(job_id: str) -> dict[str, Any]:
    """What Celery and Flower are told of a generation that has ended: never its text. Raises JobFailed."""
    end = ends.pop(job_id)
    if end.status != Status.SUCCEEDED:
        raise JobFailed(f"{end.error_code}: {end.error_message}")
    return {"finish_reason": end.finish_reason, "num_output_tokens": len(end.token_ids)}
