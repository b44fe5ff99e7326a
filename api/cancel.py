"""Cancelling: at once when the job waits; when it runs, by its worker, and without it after two seconds."""

import logging
from uuid import UUID

from redis.exceptions import RedisError

from api.errors import not_found
from api.follow import load_job, wait_for_end
from api.job_view import PREFIX
from api.services import Services
from db import jobs, queue, stream
from db.ids import public_id
from db.job_queries import JobRow
from db.jobs import Ready
from db.models import ENDED, Status

log = logging.getLogger(__name__)

WORKER_SECONDS = 2.0  # what a worker has to commit the end itself, with its latest tokens


async def cancel(services: Services, tenant: str, job_id: UUID) -> JobRow:
    """The job, ended. One that had ended already is returned as it was; an unknown one is a 404."""
    async with services.sessions() as session:
        result = await jobs.request_cancel(session, tenant, job_id)
        await session.commit()
    if result is None:
        raise not_found("job", public_id(PREFIX, job_id))
    if result.ended:
        if result.unqueue is not None:
            await _unqueue(services, result.unqueue)
        if result.job.status == Status.CANCELLED and result.job.attempt == 0:
            await _end_stream(services, job_id, num_tokens=0)
        return await _reload(services, tenant, job_id)
    if result.worker_id is not None:
        await _tell_worker(services, result.worker_id, job_id)
        row = await _reload(services, tenant, job_id)
        row = await wait_for_end(services, row, timeout_seconds=WORKER_SECONDS)
        if row.job.status in ENDED:
            return row
    await _end_without_worker(services, job_id)
    return await _reload(services, tenant, job_id)


async def _tell_worker(services: Services, worker_id: UUID, job_id: UUID) -> None:
    """Signal the worker. It would also find the mark in the row within two seconds."""
    try:
        await services.redis.publish(f"cancel.{worker_id}", str(job_id))
    except (RedisError, OSError) as error:
        log.warning("cancel not signalled", extra={"job_id": str(job_id), "error": str(error)})


async def _end_without_worker(services: Services, job_id: UUID) -> None:
    """End the row with what was delivered. The fence keeps the worker from delivering more than the row says."""
    try:
        tokens = await stream.fence_async(services.redis, job_id)
    except (RedisError, OSError) as error:
        log.warning("cancelled without the stream's tokens", extra={"job_id": str(job_id), "error": str(error)})
        tokens = []
    async with services.sessions() as session:
        job = await jobs.end_now(session, job_id, status=Status.CANCELLED, tokens=tokens)
        await session.commit()
    if job is not None:
        await _end_stream(services, job_id, num_tokens=len(tokens))


async def _end_stream(services: Services, job_id: UUID, *, num_tokens: int) -> None:
    """Tell readers at once; without it they find the row within seconds."""
    try:
        await stream.end_async(services.redis, job_id, num_tokens)
    except (RedisError, OSError) as error:
        log.warning("stream not ended", extra={"job_id": str(job_id), "error": str(error)})


async def _unqueue(services: Services, ready: Ready) -> None:
    """Take the message out of its list, which is then as long as Postgres says. One left there harms nobody."""
    try:
        await queue.remove_async(services.redis, ready)
    except (RedisError, OSError) as error:
        log.warning("message not removed", extra={"job_id": str(ready.job_id), "error": str(error)})


async def _reload(services: Services, tenant: str, job_id: UUID) -> JobRow:
    row = await load_job(services, tenant, job_id)
    if row is None:
        raise not_found("job", public_id(PREFIX, job_id))
    return row
