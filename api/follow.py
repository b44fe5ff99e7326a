"""A job followed from one of its tokens to its end: live from Redis, the past from Postgres, with equal numbers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from redis.exceptions import RedisError

from api.errors import is_store_away, not_found
from api.job_view import PREFIX
from api.services import Services
from api.stream import Watch
from db import job_queries
from db.ids import parse_id, public_id
from db.job_queries import JobRow
from db.models import ENDED, Job
from db.outputs import tokens_of
from db.stream import Token
from db.stream_reads import StreamRead, read_news
from db.tokens import Success

log = logging.getLogger(__name__)

PAGE_TOKENS = 128  # of an ended job's output
RETRY_SECONDS = 1.0  # while Redis or PostgreSQL is away
END_ONLY = 2**31 - 1  # an index beyond any output: the end is told, and no token


@dataclass(frozen=True)
class Started:
    """A worker took the job for the first time, now or before the reader came."""

    row: JobRow


@dataclass(frozen=True)
class Tokens:
    """The next output tokens, at most a page; the first of them has index `first_index`."""

    first_index: int
    tokens: list[Token]


@dataclass(frozen=True)
class Succeeded:
    """The job ended, and well; the last item for who asked for no more than that."""

    num_tokens: int
    success: Success


@dataclass(frozen=True)
class Ended:
    """The job as it ended; the last item."""

    row: JobRow


async def find_job(services: Services, tenant: str, public: str, *, prefix: str = PREFIX) -> JobRow:
    """The tenant's job behind a public id, or the 404."""
    job_id = parse_id(prefix, public)
    row = None if job_id is None else await load_job(services, tenant, job_id)
    if row is None:
        raise not_found("job", public)
    return row


async def load_job(services: Services, tenant: str, job_id: UUID) -> JobRow | None:
    """The job as Postgres has it now; None when the tenant has no such job."""
    async with services.autocommit() as session:
        return await job_queries.get(session, tenant, job_id)


async def follow(
    services: Services, row: JobRow, *, first_index: int = 0, wants_rows: bool = True
) -> AsyncGenerator[Started | Tokens | Succeeded | Ended]:
    """What happens to the job: started, its tokens from `first_index` on, each once and in order, then its end.

    Who `wants_rows` of the start and of the end gets them. Otherwise the start is left out, and an end may be but
    `Succeeded`: the stream tells it, and Postgres, which has it first, need not be asked again.

    Tokens come in pages, and the next one is read when the last was taken: what a slow client has not taken stays in
    the stores. Ends without `Ended` when the job is deleted meanwhile.
    """
    is_started, index = not wants_rows, first_index
    with (
        services.metrics.open_streams.track_inprogress(),
        services.hub.watch(
            row.job.id, row.job.status, only_end=first_index == END_ONLY, wants_rows=wants_rows
        ) as watch,
    ):
        if not wants_rows and not has_started(row.job):
            await watch.wait()  # there is nothing to read before the subscription stands, which wakes
        while True:
            news = watch.take_news()
            told = None if news is None else read_news(news, index)
            grown = told or await _read(services, row.job.id, index)
            if not wants_rows and grown is not None and (success := _success_of(grown, index)) is not None:
                if grown.tokens:
                    yield Tokens(index, grown.tokens)
                yield success
                return
            if watch.is_row_due or (grown is not None and (grown.is_ended or (grown.exists and not is_started))):
                latest = await _latest(services, row, watch)
                if latest is None:
                    return
                row = latest
            if has_started(row.job) and not is_started:
                is_started = True
                yield Started(row)
            if row.job.status in ENDED:
                for page in _pages(tokens_of(row.output), index):
                    yield page
                yield Ended(row)
                return
            if grown is not None and grown.tokens and is_started:
                yield Tokens(index, grown.tokens)
                index += len(grown.tokens)
                if index < grown.num_tokens:
                    continue
            is_store_missing = grown is None or watch.is_row_due
            await watch.wait(RETRY_SECONDS if is_store_missing else None)


def _success_of(grown: StreamRead, first_index: int) -> Succeeded | None:
    """What it has of the end, if that follows on its tokens and it tells it."""
    if grown.success is None or first_index + len(grown.tokens) != grown.num_tokens:
        return None
    return Succeeded(grown.num_tokens, grown.success)


def has_started(job: Job) -> bool:
    """Whether a worker ever took the job. That never ceases to be so, as `started_at` does when it is handed back."""
    return job.attempt > 0


async def wait_for_end(services: Services, row: JobRow, *, timeout_seconds: float | None) -> JobRow:
    """The job once it has ended, or as it is when the time is over (None: no limit). A deleted job is a 404."""
    try:
        async with asyncio.timeout(timeout_seconds), aclosing(_until_end(services, row)) as ended:
            async for last in ended:
                return last
    except TimeoutError:
        pass
    latest = await load_job(services, row.job.tenant, row.job.id)
    if latest is None:
        raise not_found("job", public_id(PREFIX, row.job.id))
    return latest


async def _until_end(services: Services, row: JobRow) -> AsyncGenerator[JobRow]:
    async for item in follow(services, row, first_index=END_ONLY, wants_rows=False):
        if isinstance(item, Ended):
            yield item.row


async def _latest(services: Services, row: JobRow, watch: Watch) -> JobRow | None:
    """The row as it is now; None when it is gone. While PostgreSQL is away it is as it was, and due again."""
    watch.is_row_due = False  # before the look: what happens from now on makes it due again
    try:
        # Its client may leave meanwhile, and a statement that is cut off takes its connection with it.
        latest = await asyncio.shield(load_job(services, row.job.tenant, row.job.id))
    except Exception as error:
        if not is_store_away(error):
            raise
        watch.is_row_due = True  # the stream goes on meanwhile
        return row
    if latest is not None:
        watch.status = latest.job.status
    return latest


def _pages(tokens: list[Token], first_index: int) -> Iterator[Tokens]:
    for index in range(first_index, len(tokens), PAGE_TOKENS):
        yield Tokens(index, tokens[index : index + PAGE_TOKENS])


async def _read(services: Services, job_id: UUID, first_index: int) -> StreamRead | None:
    """The stream's page from `first_index` on; None while Redis is away, when the row alone can tell."""
    try:
        return await services.reads.run((job_id, first_index))
    except (RedisError, OSError) as error:  # the hub has logged it once for all readers
        log.debug("cannot read a stream", extra={"job_id": str(job_id), "error": str(error)})
        return None
