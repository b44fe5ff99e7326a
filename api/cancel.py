"""Cancelling: at once when the job waits; when it runs, by its worker, and without it a few seconds later.

The mark in the row is what counts. While Redis is away nobody but the worker knows what a client was shown, so a job
that ran is left to it, or to the sweep.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError

from api.errors import not_found
from api.follow import load_job, wait_for_end
from api.job_view import PREFIX
from api.services import Services
from db import jobs, queue, stream
from db.ids import public_id
from db.job_queries import JobRow
from db.models import ENDED, Job, Status
from db.stream import Token

log = logging.getLogger(__name__)

WORKER_SECONDS = 5.0  # what a worker has to commit the end itself: more than two of its rounds of reconciling
REDIS_SECONDS = 2.0  # a job's row may be locked meanwhile


async def cancel(services: Services, tenant: str, job_id: UUID) -> JobRow:
    """The job after the cancel, ended unless only its worker can end it. An unknown one is a 404.

    One that had ended already is returned as it was. One that still runs is marked: its worker or the sweep ends it.
    """
    async with services.sessions() as session:
        result = await jobs.request_cancel(session, tenant, job_id)
        await session.commit()
    if result is None:
        raise not_found("job", public_id(PREFIX, job_id))
    if result.ended:
        if result.unqueue is not None:
            # One left in its list harms nobody: its claim fails.
            await _try(queue.remove_async(services.redis, result.unqueue), job_id, "message not removed")
        if result.job.status == Status.CANCELLED and result.job.attempt == 0:
            await _end_stream(services, job_id, num_tokens=0)
        return await _reload(services, tenant, job_id)
    if result.worker_id is not None:
        signal = services.redis.publish(f"cancel.{result.worker_id}", str(job_id))
        await _try(signal, job_id, "cancel not signalled")  # the worker finds the mark in the row, too
        row = await _reload(services, tenant, job_id)
        row = await wait_for_end(services, row, timeout_seconds=WORKER_SECONDS)
        if row.job.status in ENDED:
            return row
    return await _end_without_worker(services, tenant, job_id)


async def _end_without_worker(services: Services, tenant: str, job_id: UUID) -> JobRow:
    """End the row with what was delivered. The fence keeps the worker from delivering more than the row says."""
    try:
        async with services.sessions() as session:
            await jobs.end_now(session, job_id, status=Status.CANCELLED, read_tokens=partial(_fence, services))
            await session.commit()
    except (RedisError, OSError) as error:
        log.warning("cancel left to the worker or the sweep", extra={"job_id": str(job_id), "error": str(error)})
    row = await _reload(services, tenant, job_id)
    if row.job.status in ENDED:  # here, or by the worker just before
        await _end_stream(services, job_id, num_tokens=row.job.num_output_tokens or 0)
    return row


async def _fence(services: Services, job: Job) -> Sequence[Token] | None:
    """What the job has delivered; None when its worker has to tell, because its stream is not there, or not yet."""
    async with asyncio.timeout(REDIS_SECONDS):
        tokens = await stream.fence_async(services.redis, job.id)
    return () if tokens is None and job.status != Status.RUNNING else tokens


async def _end_stream(services: Services, job_id: UUID, *, num_tokens: int) -> None:
    """Tell readers at once; without it they find the row within seconds."""
    await _try(stream.end_async(services.redis, job_id, num_tokens), job_id, "stream not ended")


async def _try(act: Awaitable[Any], job_id: UUID, failure: str) -> None:
    """Do in Redis what only helps: what counts is in the row."""
    try:
        async with asyncio.timeout(REDIS_SECONDS):
            await act
    except (RedisError, OSError) as error:
        log.warning(failure, extra={"job_id": str(job_id), "error": str(error)})


async def _reload(services: Services, tenant: str, job_id: UUID) -> JobRow:
    row = await load_job(services, tenant, job_id)
    if row is None:
        raise not_found("job", public_id(PREFIX, job_id))
    return row
