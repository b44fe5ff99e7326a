"""The webhook endpoints of a tenant, as the OpenAI clients manage them under `client.webhooks`."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Query

from api.auth import CallerDep
from api.errors import invalid, not_found
from api.pages import parse_after
from api.schemas import ErrorBody, error_replies
from api.services import ServicesDep
from api.webhooks.probe import send_test
from api.webhooks.schemas import (
    MAX_PAGE,
    DeletedEndpoint,
    Endpoint,
    EndpointCreate,
    EndpointId,
    EndpointList,
    EndpointTest,
    EndpointTestResult,
    EndpointUpdate,
    EndpointWithSecret,
    EventTypeList,
    RotateSecret,
)
from api.webhooks.secret import expiries, too_many_secrets
from db import webhook_endpoints
from db.event_types import EVENT_TYPES
from db.ids import parse_id, public_id
from db.models import WebhookEndpoint
from db.webhook_endpoints import Changes, TooManyEndpoints, TooManySecrets
from db.webhook_secret import hint_of

PREFIX = "we_"
UNANSWERED: dict[int | str, dict[str, Any]] = {
    504: {"model": ErrorBody, "description": "No tasks worker has sent the test."}
}

router = APIRouter(tags=["Webhooks"])


@router.post(
    "/v1/webhook_endpoints",
    summary="Make a webhook endpoint",
    response_description="The endpoint, with its secret.",
    responses=error_replies(400, 401, 408, 413, 503),
)
async def create_endpoint(services: ServicesDep, caller: CallerDep, body: EndpointCreate) -> EndpointWithSecret:
    """Have events sent to a URL, signed with a secret of its own as Standard Webhooks prescribes.

    The secret is in this answer and in no other. `client.webhooks.unwrap(payload, headers, secret=...)` verifies it.
    """
    try:
        async with services.sessions() as session, session.begin():
            row = await webhook_endpoints.create(
                session,
                caller.tenant,
                name=body.name,
                url=body.url,
                event_types=list(dict.fromkeys(body.event_types)),
            )
    except TooManyEndpoints:
        most = webhook_endpoints.MAX_ENDPOINTS
        raise invalid(
            f"You have {most} webhook endpoints, the most there can be; delete one first.",
            param=None,
            code="too_many_webhook_endpoints",
        ) from None
    return _with_secret(row)


@router.get(
    "/v1/webhook_endpoints",
    summary="List webhook endpoints",
    response_description="The page.",
    responses=error_replies(400, 401, 503),
)
async def list_endpoints(
    services: ServicesDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(description="Id of the last endpoint of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most endpoints in the page.")] = 20,
) -> EndpointList:
    """Your endpoints, newest first, in pages."""
    async with services.autocommit() as session:
        rows = await webhook_endpoints.page(session, caller.tenant, after=parse_after(after, PREFIX), limit=limit + 1)
    return EndpointList.of([_view(row) for row in rows], limit=limit)


@router.get(
    "/v1/webhook_endpoints/{webhook_endpoint_id}",
    summary="Get a webhook endpoint",
    response_description="The endpoint.",
    responses=error_replies(401, 404, 503),
)
async def get_endpoint(services: ServicesDep, caller: CallerDep, webhook_endpoint_id: EndpointId) -> Endpoint:
    """The endpoint, with its health: since when it fails, and whether and why it is disabled."""
    async with services.autocommit() as session:
        row = await webhook_endpoints.get(session, caller.tenant, parse_endpoint_id(webhook_endpoint_id))
    return _view(_found(row, webhook_endpoint_id))


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}",
    summary="Update a webhook endpoint",
    response_description="The endpoint as it is now.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def update_endpoint(
    services: ServicesDep,
    caller: CallerDep,
    webhook_endpoint_id: EndpointId,
    body: Annotated[EndpointUpdate | None, Body()] = None,
) -> Endpoint:
    """Change what is sent. An endpoint that was disabled for its failures is enabled by it, unless you say otherwise.

    What it missed meanwhile is sent by POST /v1/webhook_events/replay.
    """
    body = body or EndpointUpdate()
    changes = Changes(
        name=body.name,
        url=body.url,
        event_types=None if body.event_types is None else list(dict.fromkeys(body.event_types)),
        is_disabled=body.disabled,
    )
    endpoint_id = parse_endpoint_id(webhook_endpoint_id)
    async with services.sessions() as session, session.begin():
        row = await webhook_endpoints.change(session, caller.tenant, endpoint_id, changes)
    return _view(_found(row, webhook_endpoint_id))


@router.delete(
    "/v1/webhook_endpoints/{webhook_endpoint_id}",
    summary="Delete a webhook endpoint",
    response_description="It is gone.",
    responses=error_replies(401, 404, 503),
)
async def delete_endpoint(services: ServicesDep, caller: CallerDep, webhook_endpoint_id: EndpointId) -> DeletedEndpoint:
    """Send nothing more to it, not even what is on its way."""
    endpoint_id = parse_endpoint_id(webhook_endpoint_id)
    async with services.autocommit() as session:
        if not await webhook_endpoints.delete(session, caller.tenant, endpoint_id):
            raise not_found("webhook_endpoint", webhook_endpoint_id)
    return DeletedEndpoint(id=webhook_endpoint_id)


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    summary="Rotate an endpoint's secret",
    response_description="The endpoint, with its new secret.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def rotate_secret(
    services: ServicesDep,
    caller: CallerDep,
    webhook_endpoint_id: EndpointId,
    body: Annotated[RotateSecret | None, Body()] = None,
) -> EndpointWithSecret:
    """Draw a new secret. The old one stops to sign at once, or in 24 hours: until then each delivery is signed by both.

    Either signature verifies it, so that a receiver can change its secret at any time of the day.
    """
    keeps_old = body is not None and body.keep_old_secret_active_for_24_hours
    endpoint_id = parse_endpoint_id(webhook_endpoint_id)
    try:
        async with services.sessions() as session, session.begin():
            row = await webhook_endpoints.rotate(session, caller.tenant, endpoint_id, keeps_old=keeps_old)
    except TooManySecrets as refusal:
        raise too_many_secrets(refusal) from None
    return _with_secret(_found(row, webhook_endpoint_id))


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test",
    summary="Test a webhook endpoint",
    response_description="What the endpoint answered.",
    responses={**error_replies(400, 401, 404, 408, 413, 503), **UNANSWERED},
)
async def test_endpoint(
    services: ServicesDep, caller: CallerDep, webhook_endpoint_id: EndpointId, body: EndpointTest
) -> EndpointTestResult:
    """Send a made-up event, once, and wait for the answer. Disabled endpoints are tested too.

    An endpoint that does not answer is a 400 with the reason. The event is about nothing that exists.
    """
    endpoint_id = parse_endpoint_id(webhook_endpoint_id)
    async with services.autocommit() as session:
        row = _found(await webhook_endpoints.get(session, caller.tenant, endpoint_id), webhook_endpoint_id)
    status_code = await send_test(services, row, body.event_type)
    return EndpointTestResult(
        webhook_endpoint_id=webhook_endpoint_id, event_type=body.event_type, status_code=status_code
    )


@router.get(
    "/v1/webhook_event_types",
    summary="List event types",
    response_description="The types.",
    responses=error_replies(401, 503),
)
async def list_event_types(caller: CallerDep) -> EventTypeList:
    """What endpoints may name: OpenAI's types for responses and batches, and `job.*` for all other jobs."""
    return EventTypeList(data=list(EVENT_TYPES))


def parse_endpoint_id(public: str) -> UUID:
    """The UUID of an endpoint; a 404 for what is no such id."""
    endpoint_id = parse_id(PREFIX, public)
    if endpoint_id is None:
        raise not_found("webhook_endpoint", public)
    return endpoint_id


def _found(row: WebhookEndpoint | None, public: str) -> WebhookEndpoint:
    if row is None:
        raise not_found("webhook_endpoint", public)
    return row


def _view(row: WebhookEndpoint) -> Endpoint:
    assert row.url is not None, "endpoints without a URL are not shown"
    return Endpoint(
        id=public_id(PREFIX, row.id),
        created_at=int(row.created_at.timestamp()),
        updated_at=int(row.updated_at.timestamp()),
        name=row.name,
        url=row.url,
        event_types=row.event_types,
        signing_secret_hint=hint_of(row.secret),
        old_secrets_expire_at=expiries(row),
        failing_since=_seconds(row.failing_since),
        disabled_at=_seconds(row.disabled_at),
        disabled_reason=row.disabled_reason,
    )


def _with_secret(row: WebhookEndpoint) -> EndpointWithSecret:
    return EndpointWithSecret(**_view(row).model_dump(), signing_secret=row.secret)


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
