"""What is done for a batch in a round: checked, fed to the queue, harvested, stopped, written down.

Each step is a read, then work, then one guarded transaction, and may be cut off anywhere: see `api.batch_runner`.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from api import limits
from api.auth import Caller
from api.batch_endpoints import ENDPOINTS
from api.batch_input import CheckedInput, check_input, parse_body
from api.batch_results import answered, refused, stopped
from api.cancel import cancel
from api.errors import ApiError, invalid, is_store_away, wrong_field
from api.follow import load_job
from api.foreground import end_error
from api.limits import Newcomer
from api.services import Services
from api.submit import prepare, publish, too_late
from db import batch_lines, batches, jobs
from db.batch_lines import Line, LineResult
from db.batches import Open
from db.job_queries import JobRow, Load
from db.jobs import NewJob
from db.models import Batch, Job, Status
from db.settings import TIERS

PAGE = 32  # lines in one transaction
FEED_SECONDS = 1.0  # in one round
STOP_PAGE = 200  # the same, of lines that do not run; a statement costs by the square of it
MOST_CANCELS = 32  # at once; each may wait for its worker
NOT_NOW = (429, 503)  # answers to a line that is to be tried again: the queue is full, no model has been loaded yet
LOW = TIERS.index("low")

log = logging.getLogger(__name__)


async def advance(services: Services, open_batch: Open) -> None:
    """Do what can be done now, and return; raises what the stores raise."""
    batch = open_batch.batch
    if batch.status == "validating":
        await validate(services, batch)
        return
    await harvest(services, open_batch)
    if batch.status == "cancelling" or open_batch.is_due:
        await stop(services, open_batch)
    elif batch.status == "in_progress":
        await feed(services, batch)
    await finish(services, batch)


async def validate(services: Services, batch: Batch) -> None:
    """Check the input, then take up its lines or fail the batch."""
    checked = await _check(services, batch)
    async with services.sessions() as session:
        if checked.errors:
            await batches.fail(session, batch.id, checked.errors)
        else:
            await batches.begin(session, batch.id, checked.places, checked.model)
        await session.commit()
    fields = {"batch_id": str(batch.id), "lines": len(checked.places), "errors": len(checked.errors)}
    log.info("batch validated", extra=fields)


async def _check(services: Services, batch: Batch) -> CheckedInput:
    def check(url: str) -> CheckedInput:
        with services.files.open(url) as source:
            return check_input(source, batch.endpoint)

    url = await _input_url(services, batch)
    try:
        if url is not None:
            return await asyncio.to_thread(check, url)
    except FileNotFoundError:
        pass
    message = "The input file is not there any more; upload it again and make a new batch."
    return CheckedInput(errors=[{"code": "file_not_found", "line": None, "message": message, "param": None}])


async def feed(services: Services, batch: Batch) -> None:
    """Make jobs of the next lines, as many as the batch's window and the queue have room for.

    Lines that are refused take no room; however many they are, a cancel is to be heard of soon.
    """
    is_full, deadline = False, monotonic() + FEED_SECONDS
    while not is_full:
        async with services.autocommit() as session:
            window = services.settings.batch_window
            lines = await batch_lines.pending(session, batch.id, window=window, limit=PAGE)
        if not lines:
            return
        texts = await _texts(services, batch, lines)
        prepared = await asyncio.gather(*(_prepare(services, batch, text) for text in texts))
        is_full = await _submit(services, batch, list(zip(lines, prepared, strict=True))) or monotonic() > deadline


async def _texts(services: Services, batch: Batch, lines: Sequence[Line]) -> list[bytes]:
    url = await _input_url(services, batch)
    assert url is not None, "a file is kept while a batch that has not ended reads it"
    return await asyncio.to_thread(services.files.ranges, url, [(line.first_byte, line.num_bytes) for line in lines])


async def _prepare(services: Services, batch: Batch, text: bytes) -> NewJob | ApiError:
    """The line as its endpoint would submit it, or as it would refuse it."""
    endpoint = ENDPOINTS[batch.endpoint]
    try:
        new = await prepare(services, _caller(batch), endpoint.submission(_parse(batch, text)))
    except Exception as error:
        return _refusal_of(error, batch)
    late = too_late(new.start_by, new.finish_by)
    if late is not None:
        return late
    finish_by = batch.expires_at if new.finish_by is None else min(new.finish_by, batch.expires_at)
    return replace(new, tier=LOW, stream=False, finish_by=finish_by, batch_id=batch.id)


def _refusal_of(error: Exception, batch: Batch) -> ApiError:
    """What a client would have been answered; raises the error where a store is away, and the line is to wait."""
    if isinstance(error, ApiError):
        return error
    if is_store_away(error) or isinstance(error, OSError):
        raise error
    log.exception("line failed", exc_info=error, extra={"batch_id": str(batch.id)})
    return ApiError(
        500, "The server met an error that it did not expect; its log has the details.", code="internal_error"
    )


def _parse(batch: Batch, text: bytes) -> Any:
    """The body, as its endpoint reads it; raises the ApiError that the endpoint would answer."""
    body = parse_body(text)
    if body.get("stream"):
        raise invalid("'stream' cannot be true in a batch.", param="stream")
    try:
        return ENDPOINTS[batch.endpoint].schema.model_validate(body)
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        raise wrong_field(first | {"loc": ("body", *first["loc"])}) from None


async def _submit(services: Services, batch: Batch, lines: Sequence[tuple[Line, NewJob | ApiError]]) -> bool:
    """Make jobs, and results of the lines that were refused; returns whether the rest is to wait."""
    refusals: list[LineResult] = []
    news: dict[int, NewJob] = {}
    beside, is_full = Load(0, 0), False
    for line, outcome in lines:
        if isinstance(outcome, NewJob):
            newcomer = Newcomer.of(outcome)
            is_full = await limits.refusal(services, newcomer, beside=beside) is not None
        else:
            is_full = outcome.status in NOT_NOW
        if is_full:
            break
        if isinstance(outcome, ApiError):
            refusals.append(refused(line, outcome))
        else:
            news[line.line] = outcome
            beside = Load(beside.num_jobs + 1, beside.num_tokens + newcomer.num_tokens)
    return not await _commit(services, batch, news, refusals) or is_full


async def _commit(services: Services, batch: Batch, news: dict[int, NewJob], refusals: Sequence[LineResult]) -> bool:
    """One transaction, then the messages; False when another process was quicker, and nothing was changed."""
    created: list[jobs.Created] = []
    async with services.sessions() as session:
        if news:
            window = services.settings.key_window
            created = await jobs.create_many(session, list(news.values()), key_window=window)
            job_ids = dict(zip(news, (each.job.id for each in created), strict=True))
            if not await batch_lines.checkpoint(session, batch.id, job_ids):
                return False
        if refusals:
            await batch_lines.settle(session, batch.id, refusals)
        await session.commit()
    await publish(services, created)
    return True


async def harvest(services: Services, open_batch: Open) -> None:
    """Keep the results of lines whose jobs have ended."""
    batch = open_batch.batch
    while True:
        async with services.autocommit() as session:
            lines = await batch_lines.ended(session, batch.id, limit=PAGE)
        if not lines:
            return
        texts = await _texts(services, batch, lines)
        found = [_result(services, open_batch, line, text) for line, text in zip(lines, texts, strict=True)]
        results = await asyncio.gather(*found)
        async with services.sessions() as session:
            await batch_lines.settle(session, batch.id, results)
            await session.commit()


async def _result(services: Services, open_batch: Open, line: Line, text: bytes) -> LineResult:
    batch = open_batch.batch
    row = None if line.job_id is None else await load_job(services, batch.tenant, line.job_id)
    if row is None:
        return refused(line, ApiError(500, "The request's job was deleted before its batch ended.", code="job_deleted"))
    if batch.status == "cancelling" and row.job.status == Status.CANCELLED:
        return stopped(line, row.job, is_cancelled=True)
    if open_batch.is_due and row.job.status == Status.EXPIRED and row.job.finish_by == batch.expires_at:
        return stopped(line, row.job, is_cancelled=False)
    error = end_error(row.job)
    return await _answer(services, batch, line, row, text) if error is None else refused(line, error, row.job)


async def _answer(services: Services, batch: Batch, line: Line, row: JobRow, text: bytes) -> LineResult:
    endpoint = ENDPOINTS[batch.endpoint]
    try:
        body = await endpoint.answer(services, row, _parse(batch, text))
    except Exception as error:
        refusal = _refusal_of(error, batch)
        if refusal.status in NOT_NOW:
            raise refusal from error  # the tokenizer, say, cannot be read just now
        return refused(line, refusal, row.job)
    return answered(line, row.job, body)


async def stop(services: Services, open_batch: Open) -> None:
    """End what has not begun. What runs is cancelled with its batch; a window's end is that of its jobs anyway."""
    batch = open_batch.batch
    is_cancelled = batch.status == "cancelling"
    async with services.sessions() as session:
        while lines := await batch_lines.pending(session, batch.id, limit=STOP_PAGE):
            results = [stopped(line, None, is_cancelled=is_cancelled) for line in lines]
            await batch_lines.settle(session, batch.id, results)
            await session.commit()
        job_ids = await batch_lines.running_jobs(session, batch.id) if is_cancelled else []
    for first in range(0, len(job_ids), MOST_CANCELS):
        await asyncio.gather(*(_cancel(services, batch, each) for each in job_ids[first : first + MOST_CANCELS]))


async def _cancel(services: Services, batch: Batch, job_id: UUID) -> Job | None:
    try:
        return (await cancel(services, batch.tenant, job_id)).job
    except ApiError:  # somebody deleted it
        return None


async def finish(services: Services, batch: Batch) -> None:
    """Write the files once all lines have ended, and end the batch."""
    async with services.sessions() as session:
        final = await batches.finalize(session, batch.id)
        await session.commit()
    if final is None:
        return
    files = {"output": (final.output_file_id, final.num_completed), "error": (final.error_file_id, final.num_failed)}
    urls = []
    for name, (file_id, num_lines) in files.items():
        if num_lines:
            url = services.files.url_of(file_id)
            await _write(services, final.id, url, is_output=name == "output")
            urls.append({"id": str(file_id), "url": url})
    async with services.sessions() as session:
        status = await batches.end(session, final.id, urls)
        await session.commit()
    if status is not None:
        fields = {"batch_id": str(final.id), "status": status}
        log.info("batch ended", extra=fields | {"num_completed": final.num_completed, "num_failed": final.num_failed})


async def _write(services: Services, batch_id: UUID, url: str, *, is_output: bool) -> None:
    """Write one of the files from the lines, a page at a time. Whoever repeats it writes the same bytes."""
    target = await asyncio.to_thread(services.files.create, url)
    after: int | None = 0
    try:
        while after is not None:
            async with services.autocommit() as session:
                part, after = await batch_lines.results(session, batch_id, is_output=is_output, after=after)
            await asyncio.to_thread(target.write, part)
        await asyncio.to_thread(target.commit)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(target.discard))
        raise


async def _input_url(services: Services, batch: Batch) -> str | None:
    async with services.autocommit() as session:
        return await batches.input_url(session, batch)


def _caller(batch: Batch) -> Caller:
    return Caller(batch.tenant, batch.key_id)
