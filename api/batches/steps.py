"""What is done for a batch in a round: checked, fed to the queue, harvested, stopped, written down.

Each step is a read, then work, then one guarded transaction, and may be cut off anywhere: see `api.batches.runner`.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from uuid import UUID

from api import limits
from api.auth import Caller
from api.batches.endpoints import ENDPOINTS
from api.batches.harvest import harvest
from api.batches.input import CheckedInput, check_input
from api.batches.request import NOT_NOW, PAGE, body_of, input_url, refusal_of, texts_of
from api.batches.results import refused, stopped
from api.cancel import cancel
from api.errors import ApiError
from api.limits import Newcomer
from api.services import Services
from api.submit import prepare, publish, too_late
from db import batch_lines, batches, jobs
from db.batch_lines import Line, LineResult
from db.batches import Open
from db.job_queries import Load
from db.jobs import NewJob
from db.models import Batch, Job
from db.settings import TIERS

FEED_SECONDS = 1.0  # in one round
STOP_PAGE = 200  # lines that do not run, in one transaction; a statement costs by the square of it
MOST_CANCELS = 32  # at once; each may wait for its worker
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

    url = await input_url(services, batch)
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
        texts = await texts_of(services, batch, lines)
        prepared = await asyncio.gather(*(_prepare(services, batch, text) for text in texts))
        is_full = await _submit(services, batch, list(zip(lines, prepared, strict=True))) or monotonic() > deadline


async def _prepare(services: Services, batch: Batch, text: bytes) -> NewJob | ApiError:
    """The line as its endpoint would submit it, or as it would refuse it."""
    caller = Caller(batch.tenant, batch.key_id)
    try:
        submission = await ENDPOINTS[batch.endpoint].submission(services, caller, body_of(batch, text))
        new = await prepare(services, caller, submission)
    except Exception as error:
        return refusal_of(error, batch)
    late = too_late(new.start_by, new.finish_by)
    if late is not None:
        return late
    finish_by = batch.expires_at if new.finish_by is None else min(new.finish_by, batch.expires_at)
    return replace(new, tier=LOW, stream=False, finish_by=finish_by, batch_id=batch.id)


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
            await _write(services, final.id, url, is_output=name == "output", num_lines=num_lines)
            urls.append({"id": str(file_id), "url": url})
    async with services.sessions() as session:
        status = await batches.end(session, final.id, urls)
        await session.commit()
    if status is not None:
        fields = {"batch_id": str(final.id), "status": status}
        log.info("batch ended", extra=fields | {"num_completed": final.num_completed, "num_failed": final.num_failed})


async def _write(services: Services, batch_id: UUID, url: str, *, is_output: bool, num_lines: int) -> None:
    """Write one of the files from the lines, a page at a time. Whoever repeats it writes the same bytes."""
    target = await asyncio.to_thread(services.files.create, url)
    after: int | None = 0
    num_written = 0
    try:
        while after is not None:
            async with services.autocommit() as session:
                part, after = await batch_lines.results(session, batch_id, is_output=is_output, after=after)
            await asyncio.to_thread(target.write, part)
            num_written += part.count(b"\n")
        if num_written != num_lines:  # we were frozen, another ended the batch, and its lines are gone
            raise OSError(f"batch {batch_id} has {num_written} lines left of {num_lines}: its file stays as it is")
        await asyncio.to_thread(target.commit)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(target.discard))
        raise
