"""How much may wait: per model and tier, and per key, counted in Postgres. Beyond it, 429 with an honest Retry-After.

The counts are up to a second old, so a burst may overshoot a limit by what it sends in that second.
"""

from api.errors import ApiError, retry_after
from api.services import Services
from db import job_queries
from db.jobs import NewJob
from db.settings import TIERS

ROOM_FRACTION = 0.01  # come back when this share of the queue has started, not when one seat is free


async def refusal(services: Services, new: NewJob) -> ApiError | None:
    """The 429 when the queue of the job's model and tier, or the share of its key, is full; None when it is not."""
    settings = services.settings
    num_waiting = await _num_waiting(services, new)
    if num_waiting >= settings.max_queued_jobs:
        queue = f"The {TIERS[new.tier]} queue of '{new.model}'"
        return await _queue_full(services, new, f"{queue} has {num_waiting:,} jobs of {settings.max_queued_jobs:,}.")
    num_of_key = await services.key_depths.get(new.key_id, lambda: _num_of_key(services, new))
    if num_of_key >= settings.max_queued_jobs_per_key:
        share = f"{num_of_key:,} of the {settings.max_queued_jobs_per_key:,} that one key may have"
        return await _queue_full(services, new, f"This key has {share} waiting.")
    return None


async def _num_waiting(services: Services, new: NewJob) -> int:
    depths = await services.queue_depths()
    return sum(depth.ready + depth.parked for depth in depths if (depth.model, depth.tier) == (new.model, new.tier))


async def _num_of_key(services: Services, new: NewJob) -> int:
    async with services.sessions() as session:
        return await job_queries.num_unstarted(session, new.key_id)


async def _queue_full(services: Services, new: NewJob, fact: str) -> ApiError:
    services.metrics.refused.labels(new.model, TIERS[new.tier]).inc()
    pace = await services.pace(new.model)
    seconds = pace.retry_seconds(max(1, round(services.settings.max_queued_jobs * ROOM_FRACTION)))
    message = f"{fact} Nothing was queued; try again in about {seconds:.0f} s."
    return ApiError(429, message, code="queue_full", headers=retry_after(seconds))
