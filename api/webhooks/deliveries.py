"""The delivery log: what became of a job's, an event's or an endpoint's webhooks, attempt by attempt."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.errors import not_found
from api.follow import find_job
from api.pages import Listed, Page, parse_after
from api.schemas import JobId, error_replies
from api.services import ServicesDep
from api.webhooks.endpoints import parse_endpoint_id
from api.webhooks.events import find_event
from api.webhooks.schemas import MAX_PAGE, EndpointId, EventId
from db import webhook_endpoints, webhook_log
from db.ids import public_id

PREFIX = "dlv_"

router = APIRouter(tags=["Webhooks"])


class Attempt(BaseModel):
    """One POST."""

    number: int = Field(description="1 for the first.", examples=[1])
    started_at: datetime = Field(description="When it was sent.")
    duration_ms: int = Field(description="How long it took.", examples=[87])
    status_code: int | None = Field(description="What the endpoint answered; null without an answer.", examples=[204])
    error: str | None = Field(description="Why it did not count as delivered.", examples=[None])
    response_excerpt: str | None = Field(
        description="The beginning of the endpoint's answer; secrets in it are left out.", examples=[None]
    )


DeliveryStatus = Literal["pending", "delivered", "failed"]


class Delivery(Listed):
    """One event on its way to one URL."""

    id: str = Field(description="Its id.", examples=["dlv_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["delivery"] = Field("delivery", description="Always `delivery`.")
    event_id: str = Field(
        description="Id of the event, sent as `webhook-id`: the same at every attempt, so that repeats can be told.",
        examples=["evt_0193e4c2a1b47c3d8e5f60718293a4b5"],
    )
    event_type: str = Field(description="What happened.", examples=["job.succeeded"])
    is_test: bool = Field(description="Whether the event was made up to test the endpoint.")
    endpoint_id: str | None = Field(description="The endpoint; null for a job's own `webhook_url`.")
    job_id: str | None = Field(description="The job that ended; null for batches and tests.")
    url: str = Field(description="Where it is sent.", examples=["https://example.com/hooks/headrace"])
    status: DeliveryStatus = Field(description="`failed`: the attempts are used up, or the endpoint is disabled.")
    next_attempt_at: datetime | None = Field(description="When it is tried next; null once it ended.")
    attempts: list[Attempt] = Field(description="Every POST so far, the first one first; of many, the last 100.")


class DeliveryList(BaseModel):
    """The deliveries of a job or of an event."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Delivery] = Field(description="The deliveries, the oldest first; none before the job ended.")


class DeliveryPage(Page[Delivery]):
    """A page of an endpoint's deliveries."""

    data: list[Delivery] = Field(description="The deliveries of the newest events first.")


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
        deliveries = await webhook_log.of_job(session, row.job.id)
    return DeliveryList(data=[_delivery(each) for each in deliveries])


@router.get(
    "/v1/webhook_events/{event_id}/deliveries",
    summary="Look at an event's deliveries",
    response_description="The deliveries.",
    responses=error_replies(401, 404, 503),
)
async def list_event_deliveries(services: ServicesDep, caller: CallerDep, event_id: EventId) -> DeliveryList:
    """Every delivery of the event, with each attempt's answer."""
    event = await find_event(services, caller.tenant, event_id)
    async with services.autocommit() as session:
        deliveries = await webhook_log.of_event(session, event.id)
    return DeliveryList(data=[_delivery(each) for each in deliveries])


@router.get(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries",
    summary="Look at an endpoint's deliveries",
    response_description="The page.",
    responses=error_replies(400, 401, 404, 503),
)
async def list_endpoint_deliveries(
    services: ServicesDep,
    caller: CallerDep,
    webhook_endpoint_id: EndpointId,
    after: Annotated[str | None, Query(description="Id of the last delivery of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most deliveries in the page.")] = 20,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries in this status.")] = None,
) -> DeliveryPage:
    """What was sent there, with each attempt's answer, in pages."""
    endpoint_id = parse_endpoint_id(webhook_endpoint_id)
    after_id = parse_after(after, PREFIX)
    async with services.autocommit() as session:
        if await webhook_endpoints.get(session, caller.tenant, endpoint_id) is None:
            raise not_found("webhook_endpoint", webhook_endpoint_id)
        found = await webhook_log.of_endpoint(session, endpoint_id, status=status, after=after_id, limit=limit + 1)
    return DeliveryPage.of([_delivery(each) for each in found], limit=limit)


def _delivery(each: webhook_log.Delivery) -> Delivery:
    row = each.row
    return Delivery.model_validate(
        {
            "id": public_id(PREFIX, row.id),
            "event_id": public_id("evt_", row.event_id),
            "event_type": each.event.type,
            "is_test": each.event.is_test,
            "endpoint_id": None if each.is_own_url else public_id("we_", row.endpoint_id),
            "job_id": None if row.job_id is None else public_id("job_", row.job_id),
            "url": row.url,
            "status": row.status,
            "next_attempt_at": row.due_at if row.status == "pending" else None,
            "attempts": [{name: getattr(made, name) for name in Attempt.model_fields} for made in each.attempts],
        }
    )
