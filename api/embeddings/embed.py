"""The jobs of an embeddings request: submitted together, waited for together, cancelled together."""

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Any

from api.auth import Caller
from api.cancel import cancel
from api.embeddings.schemas import EmbeddingCreate
from api.errors import NO_RETRY, ApiError
from api.follow import wait_for_end
from api.foreground import end_error
from api.generation_fields import GenerationFields
from api.services import Services
from api.submission import Submission
from db.job_queries import JobRow

KIND = "embedding"
MOST_CANCELS = 8  # at once, of one request: each may wait for a worker, and holds a connection now and then


def submissions_of(body: EmbeddingCreate) -> list[Submission]:
    """A job for each input, in their order."""
    own = {"tier": body.tier, "start_by": body.start_by, "finish_by": body.finish_by}
    sent = GenerationFields(model=body.model).model_copy(update=own)
    inputs = body.inputs
    names = ["input"] if inputs == [body.input] else [f"input[{index}]" for index in range(len(inputs))]
    return [
        Submission(
            kind=KIND,
            sent=sent,
            prompt=each,
            messages=None,
            max_tokens=0,
            default_max_tokens=0,
            stream=False,
            idempotency_key=None,
            prompt_name=name,
        )
        for name, each in zip(names, inputs, strict=True)
    ]


async def wait_for_embeddings(services: Services, rows: Sequence[JobRow]) -> list[JobRow]:
    """The jobs as they ended, all of them well; raises the error of the first that did not."""
    waiting = [asyncio.create_task(_wait(services, row)) for row in rows]
    try:
        return await asyncio.gather(*waiting)
    finally:
        for task in waiting:
            task.cancel()


def cancel_embeddings(services: Services, caller: Caller, rows: Sequence[JobRow]) -> None:
    """Soon: end those that have not ended; nobody waits for them any more."""
    turns = asyncio.Semaphore(MOST_CANCELS)

    async def cancel_one(row: JobRow) -> None:
        async with turns:
            await cancel(services, caller.tenant, row.job.id)

    for row in rows:
        services.in_background(cancel_one(row))


def told(rows: Sequence[JobRow], *, encoding_format: str) -> dict[str, Any]:
    """The answer, as `EmbeddingList` has it, of jobs that have succeeded."""
    num_tokens = sum(row.job.num_prompt_tokens for row in rows)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(_vector(row), encoding_format)}
            for index, row in enumerate(rows)
        ],
        "model": rows[0].job.model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


async def _wait(services: Services, row: JobRow) -> JobRow:
    ended = await wait_for_end(services, row, timeout_seconds=None)
    error = end_error(ended.job)
    if error is not None:
        raise error
    return ended


def _vector(row: JobRow) -> list[float]:
    if row.output is None or row.output.embedding is None:
        message = "The job's worker gave no vector; it is of an older version than the API."
        raise ApiError(500, message, code="embedding_missing", headers=NO_RETRY)
    return row.output.embedding


def _encoded(vector: list[float], encoding_format: str) -> list[float] | str:
    if encoding_format == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
