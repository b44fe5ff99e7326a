"""/healthz, also as /health, /readyz and /metrics: for schedulers and dashboards, without a key."""

import asyncio
import logging
import time
from collections.abc import Awaitable

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy import text

from api.errors import is_store_away
from api.services import Services, ServicesDep
from db import job_queries, workers
from db.job_queries import Depth
from db.models import Worker

log = logging.getLogger(__name__)

CHECK_SECONDS = 3.0
STALLED_SECONDS = 120.0  # jobs waited for so long, and none runs and none has started in the last two minutes

METRICS_EXAMPLE = 'headrace_jobs_queued{model="MODEL",tier="high"} 0.0'

router = APIRouter(tags=["Health"])


class Health(BaseModel):
    """The process answers."""

    status: str = Field("ok", description="Always `ok`.")


class Readiness(BaseModel):
    """Whether the service does its work."""

    status: str = Field(description="`ready` or `not ready`.", examples=["ready"])
    checks: dict[str, str] = Field(
        description="Each check with `ok` or what is wrong: `postgres`, `redis`, and `queue`, which fails when jobs "
        "wait and nothing starts.",
        examples=[{"postgres": "ok", "redis": "ok", "queue": "ok"}],
    )


@router.get("/healthz", summary="Is the process alive?", response_description="It is.")
async def health() -> Health:
    """Always 200, whatever else is down: restart the process when this does not answer."""
    return Health()


@router.get("/health", summary="Is the process alive?", response_description="It is.")
async def health_elsewhere() -> Health:
    """As `/healthz`, by the name that clients of other inference servers look for."""
    return Health()


@router.get(
    "/readyz",
    summary="Does the service work?",
    response_description="It does.",
    responses={503: {"model": Readiness, "description": "No."}},
)
async def readiness(services: ServicesDep, response: Response) -> Readiness:
    """200 when PostgreSQL and Redis answer and the queue moves; 503 with the reason otherwise."""
    asked = {"postgres": _ping_postgres, "redis": _ping_redis, "queue": _check_queue}
    outcomes = await asyncio.gather(*(_checked(name, check(services)) for name, check in asked.items()))
    checks = dict(zip(asked, outcomes, strict=True))
    is_ready = all(outcome == "ok" for outcome in outcomes)
    response.status_code = 200 if is_ready else 503
    return Readiness(status="ready" if is_ready else "not ready", checks=checks)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_description="The metrics.",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": METRICS_EXAMPLE}}}},
)
async def metrics(services: ServicesDep) -> Response:
    """The queue as Postgres has it, the engines as they last told, and this process's requests, submits and streams."""
    depths: list[Depth] = []
    live: list[Worker] = []
    try:
        async with services.autocommit() as session:
            depths = await job_queries.queue_depths(session)
            live = await workers.live(session, services.settings.lease_seconds)
    except Exception as error:  # the process's own numbers are worth having when Postgres is away
        log.warning("metrics without the queue", extra={"error": str(error)})
    return Response(services.metrics.render(depths, live), media_type="text/plain; version=0.0.4")


async def _checked(name: str, check: Awaitable[str]) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except TimeoutError:
        return f"no answer in {CHECK_SECONDS:g} s"
    except Exception as error:  # whatever is wrong with it, the check has failed; who asks may be anyone
        reason = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("not ready", extra={"check": name, "error": reason})
        return "not reachable" if is_store_away(error) else "failed; the API's log has the reason"


async def _ping_postgres(services: Services) -> str:
    async with services.autocommit() as session:
        await session.execute(text("SELECT 1"))
    return "ok"


async def _ping_redis(services: Services) -> str:
    await services.redis.ping()
    return "ok"


async def _check_queue(services: Services) -> str:
    """Whether some model's jobs have waited for long while none of its jobs runs or started lately."""
    for depth in await services.queue_depths():
        if depth.oldest_ready_at is None:
            continue
        waited = time.time() - depth.oldest_ready_at
        pace = await services.pace(depth.model)
        if waited > STALLED_SECONDS and pace.num_running == 0 and pace.rate is None:
            return f"{depth.ready} jobs of '{depth.model}' wait, the oldest for {waited:.0f} s, and nothing starts"
    return "ok"
