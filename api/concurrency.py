"""How many jobs of one key may be queued and running at once: counted in Postgres, one submit after the other.

Lines of batches are no part of it: they are not held up by the limit, and take nothing of it. A batch has a limit of
its own, HEADRACE_BATCH_WINDOW, runs in the low tier, and is there to be waited for; who has one running may submit as
many other jobs as without it.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from api import limits
from api.auth import Caller
from api.errors import ApiError, retry_after
from api.services import Services
from db import key_limits


def is_limited(caller: Caller) -> bool:
    """Whether the caller's jobs are counted at all."""
    return bool(caller.allowance.limits.concurrent_jobs)


async def room(services: Services, caller: Caller) -> int | None:
    """How many more jobs the caller may have, as it stands now; None: any number."""
    if not is_limited(caller):
        return None
    async with services.autocommit() as session:
        return await _room(session, caller)


async def refusal(services: Services, caller: Caller) -> ApiError | None:
    """The 429 when the caller has as many jobs as it may."""
    return await too_many(services, caller) if await room(services, caller) == 0 else None


async def is_full(session: AsyncSession, caller: Caller, *, num_jobs: int = 1) -> bool:
    """Whether so many are too many, and true until the transaction ends: other submits of the key wait for that."""
    if not is_limited(caller):
        return False
    await key_limits.lock(session, caller.key_id)
    return await _room(session, caller) < num_jobs


def turn(services: Services, caller: Caller) -> AbstractAsyncContextManager[Any]:
    """In this process a key's submits wait here for each other, so that not each of them waits with a connection."""
    return services.turns.setdefault(caller.key_id, asyncio.Lock()) if is_limited(caller) else nullcontext()


async def too_many(services: Services, caller: Caller) -> ApiError:
    """The 429, with the time until one of the key's jobs should have ended, by how many start."""
    drain = await limits.key_drain(services, caller.key_id)
    seconds = limits.bounded(limits.drain_seconds(1, drain.jobs_per_second))
    message = (
        f"This key may have {caller.allowance.limits.concurrent_jobs:,} jobs queued and running at once, and has them. "
        f"Nothing was queued; try again in about {seconds:.0f} s, when one has ended, or ask the operator for more."
    )
    return ApiError(429, message, code="too_many_jobs", headers=retry_after(seconds))


async def _room(session: AsyncSession, caller: Caller) -> int:
    most = caller.allowance.limits.concurrent_jobs or 0
    return max(0, most - await key_limits.num_unfinished(session, caller.key_id, most=most))
