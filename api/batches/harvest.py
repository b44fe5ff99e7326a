"""What becomes of a batch's lines when their jobs have ended: their results, written once.

A result is what the line's endpoint would have answered, or why there is none. With it goes the job of a response that
was not to be kept, which only its batch could read.
"""

import asyncio
from collections.abc import Sequence

from api.batches.endpoints import ENDPOINTS
from api.batches.request import NOT_NOW, PAGE, body_of, refusal_of, texts_of
from api.batches.results import answered, refused, stopped
from api.errors import ApiError
from api.follow import load_job
from api.foreground import end_error
from api.services import Services
from db import batch_lines, jobs
from db.batch_lines import Line, LineResult
from db.batches import Open
from db.job_queries import JobRow
from db.models import Batch, Status


async def harvest(services: Services, open_batch: Open) -> None:
    """Keep the results of lines whose jobs have ended."""
    batch = open_batch.batch
    while True:
        async with services.autocommit() as session:
            lines = await batch_lines.ended(session, batch.id, limit=PAGE)
        if not lines:
            return
        texts = await _texts(services, open_batch, lines)
        rows = await asyncio.gather(*(_row(services, batch, line) for line in lines))
        found = zip(lines, rows, texts, strict=True)
        results = await asyncio.gather(*(_result(services, open_batch, *each) for each in found))
        async with services.sessions() as session:
            await batch_lines.settle(session, batch.id, results)
            for row in rows:
                if row is not None and not _is_kept(row):
                    await jobs.delete(session, batch.tenant, row.job.id)
            await session.commit()


async def _texts(services: Services, open_batch: Open, lines: Sequence[Line]) -> Sequence[bytes | None]:
    """What was asked in the lines; None of a batch that is to end, and whose input file is not there.

    Until then it may come back, as with a volume that was not mounted.
    """
    try:
        return await texts_of(services, open_batch.batch, lines)
    except FileNotFoundError:
        if open_batch.batch.status != "cancelling" and not open_batch.is_due:
            raise
        return [None] * len(lines)


async def _row(services: Services, batch: Batch, line: Line) -> JobRow | None:
    return None if line.job_id is None else await load_job(services, batch.tenant, line.job_id)


async def _result(
    services: Services, open_batch: Open, line: Line, row: JobRow | None, text: bytes | None
) -> LineResult:
    batch = open_batch.batch
    if row is None:
        return refused(line, ApiError(500, "The request's job was deleted before its batch ended.", code="job_deleted"))
    if batch.status == "cancelling" and row.job.status == Status.CANCELLED:
        return stopped(line, row.job, is_cancelled=True)
    is_of_window = row.job.error_code == "finish_by_passed" and row.job.finish_by == batch.expires_at
    if row.job.status == Status.EXPIRED and is_of_window:
        return stopped(line, row.job, is_cancelled=False)
    error = end_error(row.job)
    return await _answer(services, open_batch, line, row, text) if error is None else refused(line, error, row.job)


async def _answer(services: Services, open_batch: Open, line: Line, row: JobRow, text: bytes | None) -> LineResult:
    batch = open_batch.batch
    endpoint = ENDPOINTS[batch.endpoint]
    if text is None:
        message = "The batch's input file is gone from the store of files, and with it what was asked."
        return refused(line, ApiError(404, message, code="file_not_found"), row.job)
    try:
        body = await endpoint.answer(services, row, body_of(batch, text))
    except Exception as error:
        refusal = refusal_of(error, batch)
        is_to_end = batch.status == "cancelling" or open_batch.is_due  # and may not wait for ever
        if refusal.status in NOT_NOW and not is_to_end:
            raise refusal from error  # the tokenizer, say, cannot be read just now
        return refused(line, refusal, row.job)
    return answered(line, row.job, body)


def _is_kept(row: JobRow) -> bool:
    """Whether the job may be read later: a response may have been sent with `store` false."""
    return bool((row.input.request or {}).get("store", True))
