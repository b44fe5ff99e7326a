"""The delivery log: of a job, of an event or of an endpoint, each delivery with its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, UnaryExpression, and_, select
from sqlalchemy.ext.asyncio import AsyncSession

from db.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookEvent

MAX_ATTEMPTS = 100  # shown of a delivery, its last ones: replays add to them
OLDEST_FIRST = (WebhookDelivery.created_at.asc(), WebhookDelivery.id.asc())


@dataclass(frozen=True)
class Delivery:
    """An event's way to one endpoint, as its owner may see it."""

    row: WebhookDelivery
    event: WebhookEvent
    is_own_url: bool  # a job's `webhook_url`, of no endpoint that can be managed
    attempts: list[WebhookAttempt]


async def of_job(session: AsyncSession, job_id: UUID) -> list[Delivery]:
    """The deliveries of a job's event, the oldest first."""
    return await _read(session, WebhookDelivery.job_id == job_id, OLDEST_FIRST)


async def of_event(session: AsyncSession, event_id: UUID) -> list[Delivery]:
    """The deliveries of an event, the oldest first."""
    return await _read(session, WebhookDelivery.event_id == event_id, OLDEST_FIRST)


async def of_endpoint(
    session: AsyncSession, endpoint_id: UUID, *, status: str | None, after: UUID | None, limit: int
) -> list[Delivery]:
    """A page of an endpoint's deliveries, those of the newest events first."""
    conditions = [WebhookDelivery.endpoint_id == endpoint_id]
    if status is not None:
        conditions.append(WebhookDelivery.status == status)
    if after is not None:
        conditions.append(WebhookDelivery.id < after)
    return await _read(session, and_(*conditions), [WebhookDelivery.id.desc()], limit)


async def last_attempt(session: AsyncSession, delivery_id: UUID) -> WebhookAttempt | None:
    """The delivery's latest attempt; None before the first has ended."""
    statement = (
        select(WebhookAttempt).where(WebhookAttempt.delivery_id == delivery_id).order_by(WebhookAttempt.number.desc())
    )
    found: WebhookAttempt | None = await session.scalar(statement.limit(1))
    return found


async def _read(
    session: AsyncSession,
    condition: ColumnElement[bool],
    order: Sequence[UnaryExpression[Any]],
    limit: int | None = None,
) -> list[Delivery]:
    is_own = and_(WebhookEndpoint.id == WebhookDelivery.endpoint_id, WebhookEndpoint.url.is_(None))
    statement = (
        select(WebhookDelivery, WebhookEvent, WebhookEndpoint.id)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .outerjoin(WebhookEndpoint, is_own)
        .where(condition)
        .order_by(*order)
        .limit(limit)
    )
    rows = (await session.execute(statement)).all()
    attempts = await _attempts_of(session, [row.id for row, _, _ in rows])
    return [Delivery(row, event, own is not None, attempts[row.id]) for row, event, own in rows]


async def _attempts_of(session: AsyncSession, delivery_ids: list[UUID]) -> dict[UUID, list[WebhookAttempt]]:
    last = WebhookAttempt.number > WebhookDelivery.num_attempts - MAX_ATTEMPTS
    attempts = await session.scalars(
        select(WebhookAttempt)
        .join(WebhookDelivery, WebhookDelivery.id == WebhookAttempt.delivery_id)
        .where(WebhookAttempt.delivery_id.in_(delivery_ids), last)
        .order_by(WebhookAttempt.delivery_id, WebhookAttempt.number)
    )
    of_delivery: dict[UUID, list[WebhookAttempt]] = {delivery_id: [] for delivery_id in delivery_ids}
    for attempt in attempts:
        of_delivery[attempt.delivery_id].append(attempt)
    return of_delivery
