"""Waiting for a job on behalf of a client that may leave first."""

import asyncio

from fastapi import Request
from starlette.types import Receive

from api.follow import wait_for_end
from api.services import Services
from db.job_queries import JobRow

CLIENT_GONE = 499  # nginx's status for it; nobody receives it


async def wait_unless_left(services: Services, row: JobRow, request: Request) -> JobRow | None:
    """The job once it has ended; None when its client left before. A deleted job is a 404."""
    end = asyncio.create_task(wait_for_end(services, row, timeout_seconds=None))
    gone = asyncio.create_task(until_disconnect(request.receive))
    try:
        await asyncio.wait({end, gone}, return_when=asyncio.FIRST_COMPLETED)
        return end.result() if end.done() else None
    finally:
        gone.cancel()
        end.cancel()


async def until_disconnect(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
