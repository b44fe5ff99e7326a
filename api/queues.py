"""GET /v1/queues: how much waits and runs, per model and tier, as Postgres has it."""

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.fields import TIER_MEANING, Tier
from api.schemas import error_replies
from api.services import ServicesDep
from db import job_queries, workers
from db.job_queries import Depth
from db.settings import TIERS

router = APIRouter(tags=["Queues and models"])


class Queue(BaseModel):
    """One model's queue of one tier."""

    model: str = Field(description="The model.", examples=["MODEL"])
    tier: Tier = Field(description=TIER_MEANING)
    queued: int = Field(description="Jobs ready and waiting for a seat: the length of the list in Redis.")
    parked: int = Field(description="Jobs that wait for earlier ones of their key; they become ready by themselves.")
    running: int = Field(description="Jobs that a worker holds.")
    waiting_tokens: int = Field(description="Tokens, of prompts and `max_tokens`, of the queued and the parked jobs.")
    oldest_wait_seconds: float | None = Field(description="How long the first one waits; null when none does.")


class QueueList(BaseModel):
    """Every served model's three queues, the most urgent first."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Queue] = Field(description="The queues.")


@router.get(
    "/v1/queues", summary="Look at the queues", response_description="The queues.", responses=error_replies(401, 503)
)
async def list_queues(services: ServicesDep, caller: CallerDep) -> QueueList:
    """How many jobs wait and run, of all keys together, per model and tier; empty queues are listed too."""
    async with services.autocommit() as session:
        depths = {(depth.model, depth.tier): depth for depth in await job_queries.queue_depths(session)}
        served = {worker.model for worker in await workers.models(session)}
    models = sorted(served | {model for model, _ in depths})
    return QueueList(
        data=[_queue(model, tier, depths.get((model, tier))) for model in models for tier in range(len(TIERS))]
    )


def _queue(model: str, tier: int, depth: Depth | None) -> Queue:
    oldest = None if depth is None else depth.oldest_ready_at
    wait = None if oldest is None else round(max(0.0, time.time() - oldest), 3)
    return Queue.model_validate(
        {
            "model": model,
            "tier": TIERS[tier],
            "queued": depth.ready if depth else 0,
            "parked": depth.parked if depth else 0,
            "running": depth.running if depth else 0,
            "waiting_tokens": depth.num_tokens if depth else 0,
            "oldest_wait_seconds": wait,
        }
    )
