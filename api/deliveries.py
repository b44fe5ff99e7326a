"""GET /v1/jobs/{id}/deliveries: what became of a job's webhooks, attempt by attempt."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.follow import find_job
from api.schemas import JobId, error_replies
from api.services import ServicesDep
from db import webhooks
from db.ids import public_id

router = APIRouter(tags=["Webhooks"])


class Attempt(BaseModel):
    """One POST."""

    number: int = Field(description="1 for the first.", examples=[1])
    started_at: datetime = Field(description="When it was sent.")
    duration_ms: int = Field(description="How long it took.", examples=[87])
    status_code: int | None = Field(description="What the endpoint answered; null without an answer.", examples=[204])
    error: str | None = Field(description="Why it did not count as delivered.", examples=[None])
    response_excerpt: str | None = Field(description="The beginning of the endpoint's answer.", examples=[None])


class Delivery(BaseModel):
    """One event on its way to one URL."""

    id: str = Field(description="Its id.", examples=["dlv_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["delivery"] = Field("delivery", description="Always `delivery`.")
    event_id: str = Field(
        description="Id of the event, sent as `webhook-id`: the same at every attempt, so that repeats can be told.",
        examples=["evt_0193e4c2a1b47c3d8e5f60718293a4b5"],
    )
    event_type: str = Field(description="What happened.", examples=["job.succeeded"])
    url: str = Field(description="Where it is sent.", examples=["https://example.com/hooks/headrace"])
    status: Literal["pending", "delivered", "failed"] = Field(description="`failed`: the attempts are used up.")
    next_attempt_at: datetime | None = Field(description="When it is tried next; null once it ended.")
    attempts: list[Attempt] = Field(description="Every POST so far, the first one first.")


class DeliveryList(BaseModel):
    """A job's deliveries."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Delivery] = Field(description="The deliveries, the oldest first; none before the job ended.")


@router.get(
    "/v1/jobs/{job_id}/deliveries",
    summary="Look at a job's webhooks",
    response_description="The deliveries.",
    responses=error_replies(401, 404, 503),
)
async def list_deliveries(services: ServicesDep, caller: CallerDep, job_id: JobId) -> DeliveryList:
    """Every delivery of the job's event, with each attempt's answer: where to look when a webhook did not arrive."""
    row = await find_job(services, caller.tenant, job_id)
    async with services.autocommit() as session:
        deliveries = await webhooks.deliveries_of(session, row.job.id)
    event_type = f"job.{row.job.status}"  # a job has one event, that of its end
    return DeliveryList(data=[_delivery(each, event_type) for each in deliveries])


def _delivery(each: webhooks.Delivery, event_type: str) -> Delivery:
    delivery = each.row
    return Delivery.model_validate(
        {
            "id": public_id("dlv_", delivery.id),
            "event_id": public_id("evt_", delivery.event_id),
            "event_type": event_type,
            "url": delivery.url,
            "status": delivery.status,
            "next_attempt_at": delivery.due_at if delivery.status == "pending" else None,
            "attempts": [{name: getattr(made, name) for name in Attempt.model_fields} for made in each.attempts],
        }
    )
