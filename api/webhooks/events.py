"""What happened, as webhooks tell it: listed, looked at, and sent again."""

import json
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query

from api.auth import Caller, CallerDep
from api.errors import invalid, not_found
from api.fields import Moment
from api.pages import parse_after
from api.schemas import error_replies
from api.services import Services, ServicesDep
from api.webhooks.endpoints import parse_endpoint_id
from api.webhooks.schemas import (
    MAX_PAGE,
    EventId,
    EventList,
    EventView,
    ReplayedEvents,
    ReplayEvent,
    ReplayEvents,
)
from db import webhook_endpoints, webhook_replays
from db.event_types import EventType
from db.ids import parse_id, public_id
from db.models import WebhookEvent

PREFIX = "evt_"

router = APIRouter(tags=["Webhooks"])


@router.get(
    "/v1/webhook_events",
    summary="List events",
    response_description="The page.",
    responses=error_replies(400, 401, 503),
)
async def list_events(
    services: ServicesDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(description="Id of the last event of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most events in the page.")] = 20,
    type: Annotated[EventType | None, Query(description="Only events of this type.")] = None,
    since: Annotated[Moment | None, Query(description="Only events that happened then or later (RFC 3339).")] = None,
    until: Annotated[Moment | None, Query(description="Only events that happened before (RFC 3339).")] = None,
) -> EventList:
    """Every event, sent or not, newest first, in pages."""
    async with services.autocommit() as session:
        rows = await webhook_replays.newest(
            session,
            caller.tenant,
            event_type=type,
            since=since,
            until=until,
            after=parse_after(after, PREFIX),
            limit=limit + 1,
        )
    return EventList.of([_view(row) for row in rows], limit=limit)


@router.get(
    "/v1/webhook_events/{event_id}",
    summary="Get an event",
    response_description="The event.",
    responses=error_replies(401, 404, 503),
)
async def get_event(services: ServicesDep, caller: CallerDep, event_id: EventId) -> EventView:
    """The event, with what is sent."""
    return _view(await find_event(services, caller.tenant, event_id))


@router.post(
    "/v1/webhook_events/replay",
    status_code=202,
    summary="Replay events",
    response_description="How much is on its way.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def replay_events(services: ServicesDep, caller: CallerDep, body: ReplayEvents) -> ReplayedEvents:
    """Send the events of a time again, under their own ids and with the same bytes: a receiver can tell repeats.

    At most 1,000 events in a call, the oldest first: while `has_more`, call again with `after` set to `last_id`.
    """
    if body.until <= body.since:
        raise invalid("'until' is not later than 'since'.", param="until")
    endpoint_id = await _open_endpoint(services, caller, body.endpoint)
    async with services.sessions() as session, session.begin():
        ids = await webhook_replays.ids_between(
            session,
            caller.tenant,
            since=body.since,
            until=body.until,
            after=parse_after(body.after, PREFIX),
            limit=body.limit + 1,
        )
        page = ids[: body.limit]
        num_deliveries = await webhook_replays.replay(
            session, page, endpoint_id=endpoint_id, undelivered=body.undelivered
        )
    return ReplayedEvents(
        num_events=len(page),
        num_deliveries=num_deliveries,
        last_id=public_id(PREFIX, page[-1]) if page else None,
        has_more=len(ids) > body.limit,
    )


@router.post(
    "/v1/webhook_events/{event_id}/replay",
    status_code=202,
    summary="Replay an event",
    response_description="How much is on its way.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def replay_event(
    services: ServicesDep,
    caller: CallerDep,
    event_id: EventId,
    body: Annotated[ReplayEvent | None, Body()] = None,
) -> ReplayedEvents:
    """Send an event again, under its own id and with the same bytes, whatever became of it; its attempts begin anew."""
    endpoint_id = await _open_endpoint(services, caller, None if body is None else body.endpoint)
    event = await find_event(services, caller.tenant, event_id)
    async with services.sessions() as session, session.begin():
        num_deliveries = await webhook_replays.replay(
            session, [event.id], endpoint_id=endpoint_id, any_type=endpoint_id is not None
        )
    return ReplayedEvents(num_events=1, num_deliveries=num_deliveries, last_id=event_id, has_more=False)


async def find_event(services: Services, tenant: str, public: str) -> WebhookEvent:
    """The tenant's event behind a public id, or the 404."""
    event_id = parse_id(PREFIX, public)
    row = None
    if event_id is not None:
        async with services.autocommit() as session:
            row = await webhook_replays.get(session, tenant, event_id)
    if row is None:
        raise not_found("webhook_event", public)
    return row


async def _open_endpoint(services: Services, caller: Caller, public: str | None) -> UUID | None:
    """The endpoint that a replay names; refuses one that would get nothing."""
    if public is None:
        return None
    endpoint_id = parse_endpoint_id(public)
    async with services.autocommit() as session:
        row = await webhook_endpoints.get(session, caller.tenant, endpoint_id)
    if row is None:
        raise not_found("webhook_endpoint", public)
    if row.disabled_at is not None:
        raise invalid(
            f"The endpoint is disabled: {row.disabled_reason}. Update it first.",
            param="endpoint",
            code="webhook_endpoint_disabled",
        )
    return endpoint_id


def _view(row: WebhookEvent) -> EventView:
    return EventView(
        id=public_id(PREFIX, row.id),
        type=row.type,
        created_at=row.created_at,
        is_test=row.is_test,
        body=json.loads(row.body),
    )
