"""Webhook events: looked at, sent again under their own ids, and made up for a test."""

import json
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from db.event_types import sample_data
from db.events import DELIVERY_ID
from db.ids import first_id_at, new_id, public_id
from db.models import WebhookDelivery, WebhookEndpoint, WebhookEvent

CLOCK_SKEW = 600.0  # seconds by which an id's time, of the process that drew it, may differ from Postgres's

# A delivery under way is left to its sender. The others begin their schedule anew, wherever they stand in it. Who had
# none gets one: the named endpoint, or each that was there for the event, wanted it, and was disabled.
REPLAY = text(f"""
    WITH event AS (
        SELECT * FROM webhook_events WHERE id = ANY(CAST(:event_ids AS uuid[]))
    ), again AS (
        UPDATE webhook_deliveries AS d SET
            status = 'pending', due_at = clock_timestamp(), num_before_replay = num_attempts,
            url = coalesce(endpoint.url, d.url), host = coalesce(endpoint.host, d.host)
        FROM event, webhook_endpoints AS endpoint
        WHERE d.event_id = event.id AND endpoint.id = d.endpoint_id AND endpoint.disabled_at IS NULL
          AND endpoint.id = coalesce(CAST(:endpoint_id AS uuid), endpoint.id)
          AND (sending_until IS NULL OR sending_until <= clock_timestamp())
          AND (status <> 'delivered' OR NOT :undelivered)
        RETURNING d.id
    ), made AS (
        INSERT INTO webhook_deliveries (id, event_id, endpoint_id, job_id, url, tenant, host)
        SELECT {DELIVERY_ID.format(event_id="event.id")}, event.id, endpoint.id, job_id, endpoint.url, tenant,
            coalesce(endpoint.host, '')
        FROM event JOIN webhook_endpoints AS endpoint USING (tenant)
        WHERE endpoint.url IS NOT NULL AND endpoint.disabled_at IS NULL
          AND (endpoint.id = CAST(:endpoint_id AS uuid)
               OR (CAST(:endpoint_id AS uuid) IS NULL AND endpoint.created_at <= event.created_at))
          AND (:any_type OR cardinality(event_types) = 0 OR event.type = ANY(event_types))
        ON CONFLICT (event_id, endpoint_id) DO NOTHING
        RETURNING id
    )
    SELECT (SELECT count(*) FROM again) + (SELECT count(*) FROM made)
""")


async def get(session: AsyncSession, tenant: str, event_id: UUID) -> WebhookEvent | None:
    """The tenant's event."""
    statement = select(WebhookEvent).where(WebhookEvent.id == event_id, WebhookEvent.tenant == tenant)
    row: WebhookEvent | None = await session.scalar(statement)
    return row


async def newest(
    session: AsyncSession,
    tenant: str,
    *,
    event_type: str | None,
    since: datetime | None,
    until: datetime | None,
    after: UUID | None,
    limit: int,
) -> list[WebhookEvent]:
    """A page of the tenant's events, the newest first, from after the event `after` on."""
    conditions = _happened(tenant, since, until)
    if event_type is not None:
        conditions.append(WebhookEvent.type == event_type)
    if after is not None:
        conditions.append(WebhookEvent.id < after)
    statement = select(WebhookEvent).where(*conditions).order_by(WebhookEvent.id.desc()).limit(limit)
    return list(await session.scalars(statement))


async def ids_between(
    session: AsyncSession, tenant: str, *, since: datetime, until: datetime, after: UUID | None, limit: int
) -> list[UUID]:
    """A page of the tenant's events of that time but for tests, the oldest first, from after the event `after` on."""
    conditions = [*_happened(tenant, since, until), WebhookEvent.is_test.is_(False)]
    if after is not None:
        conditions.append(WebhookEvent.id > after)
    return list(
        await session.scalars(select(WebhookEvent.id).where(*conditions).order_by(WebhookEvent.id).limit(limit))
    )


async def replay(
    session: AsyncSession,
    event_ids: list[UUID],
    *,
    endpoint_id: UUID | None,
    any_type: bool = False,
    undelivered: bool = False,
) -> int:
    """Make the events' deliveries due again, to one endpoint or to all; returns how many deliveries that are.

    `any_type` sends to an endpoint what it never asked for; `undelivered` leaves out what arrived.
    """
    parameters = {
        "event_ids": event_ids,
        "endpoint_id": endpoint_id,
        "any_type": any_type,
        "undelivered": undelivered,
    }
    return int((await session.execute(REPLAY, parameters)).scalar_one())


async def add_test(session: AsyncSession, endpoint: WebhookEndpoint, event_type: str) -> UUID:
    """Insert a test event for the endpoint, to be sent once; returns its delivery's id."""
    event_id, delivery_id = new_id(), new_id()
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    event = {
        "id": public_id("evt_", event_id),
        "object": "event",
        "type": event_type,
        "created_at": int(now.timestamp()),
        "data": sample_data(event_type, new_id()),
    }
    whose = {"tenant": endpoint.tenant, "event_id": event_id, "endpoint_id": endpoint.id}
    session.add_all(
        [
            WebhookEvent(
                id=event_id, tenant=endpoint.tenant, type=event_type, body=json.dumps(event).encode(), is_test=True
            ),
            WebhookDelivery(id=delivery_id, url=endpoint.url, host=endpoint.host or "", **whose),
        ]
    )
    await session.flush()
    return delivery_id


async def give_up_test(session: AsyncSession, delivery_id: UUID) -> None:
    """End a test that nobody has sent: it would come as a surprise later."""
    await session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id, WebhookDelivery.status == "pending")
        .values(status="failed", due_at=None)
        .execution_options(synchronize_session=False)
    )


def _happened(tenant: str, since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    """Exact by the row's time, and bounded by its id, which an index has in order."""
    conditions = [WebhookEvent.tenant == tenant]
    if since is not None:
        first = first_id_at(max(0.0, since.timestamp() - CLOCK_SKEW))
        conditions += [WebhookEvent.created_at >= since, WebhookEvent.id >= first]
    if until is not None:
        past = first_id_at(max(0.0, until.timestamp() + CLOCK_SKEW))
        conditions += [WebhookEvent.created_at < until, WebhookEvent.id < past]
    return conditions
