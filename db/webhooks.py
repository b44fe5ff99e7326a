"""The webhook outbox: what is due, leased to one sender at a time, and how each attempt went."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import case, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db.ids import new_id
from db.models import WebhookAttempt, WebhookDelivery

PENDING = text("'pending'")
Lane = tuple[UUID, str]  # endpoint, and scheme://host of the URL: what can be slow as one


@dataclass(frozen=True)
class Due:
    """A delivery to attempt now, this sender's until its lease ends."""

    delivery_id: UUID
    event_id: UUID
    endpoint_id: UUID
    job_id: UUID
    url: str
    secret: str
    body: bytes
    num_attempts: int  # made so far

    @property
    def lane(self) -> Lane:
        """What it shares a limit with."""
        scheme, _, rest = self.url.partition("://")
        return self.endpoint_id, f"{scheme}://{rest.partition('/')[0]}"


@dataclass(frozen=True)
class Attempt:
    """One POST. `error` says why it failed, None when it did not; an unanswered one has no `status_code`."""

    started_at: datetime
    duration_ms: int
    status_code: int | None
    error: str | None
    response_excerpt: str | None


@dataclass(frozen=True)
class Delivery:
    """An event's way to one endpoint, as its owner may see it."""

    row: WebhookDelivery
    attempts: list[WebhookAttempt]


# The oldest due of each lane, up to its room, so that a lane with thousands due does not hide the others.
LEASE_DUE = text("""
    WITH due AS (
        SELECT id, endpoint_id, substring(url FROM '^[^:]+://[^/]*') AS host, due_at,
               row_number() OVER (
                   PARTITION BY endpoint_id, substring(url FROM '^[^:]+://[^/]*') ORDER BY due_at, id
               ) AS place
        FROM webhook_deliveries
        WHERE status = 'pending' AND due_at <= clock_timestamp()
    ), busy AS (
        SELECT * FROM unnest(CAST(:endpoint_ids AS uuid[]), CAST(:hosts AS text[]), CAST(:counts AS int[]))
            AS busy(endpoint_id, host, num_sending)
    ), chosen AS (
        SELECT d.id FROM webhook_deliveries d
        WHERE d.id IN (
            SELECT due.id FROM due LEFT JOIN busy USING (endpoint_id, host)
            WHERE due.place + coalesce(busy.num_sending, 0) <= :lane_limit
            ORDER BY due.due_at LIMIT :limit
        ) AND d.status = 'pending' AND d.due_at <= clock_timestamp()
        FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook_deliveries SET due_at = clock_timestamp() + :lease_seconds * interval '1 second'
    FROM chosen, webhook_events, webhook_endpoints
    WHERE webhook_deliveries.id = chosen.id
      AND webhook_events.id = webhook_deliveries.event_id
      AND webhook_endpoints.id = webhook_deliveries.endpoint_id
    RETURNING webhook_deliveries.id AS delivery_id, event_id, endpoint_id, webhook_deliveries.job_id,
        webhook_deliveries.url, secret, body, num_attempts
""")


def lease_due(
    session: Session,
    *,
    limit: int,
    lease_seconds: float,
    lane_limit: int = 1_000_000,
    busy: Mapping[Lane, int] | None = None,
) -> list[Due]:
    """Take at most `limit` due deliveries, in no order; nobody else gets them before `lease_seconds` are over.

    `busy` says how many the caller has under way in each lane: together with those, none gets more than `lane_limit`.
    """
    lanes = list((busy or {}).items())
    parameters = {
        "limit": limit,
        "lease_seconds": lease_seconds,
        "lane_limit": lane_limit,
        "endpoint_ids": [endpoint_id for (endpoint_id, _), _ in lanes],
        "hosts": [host for (_, host), _ in lanes],
        "counts": [count for _, count in lanes],
    }
    return [Due(**row) for row in session.execute(LEASE_DUE, parameters).mappings()]


def record_attempt(
    session: Session,
    delivery_id: UUID,
    attempt: Attempt,
    *,
    outcome: Literal["delivered", "retry", "failed"],
    retry_in_seconds: float | None = None,
) -> None:
    """Write down how a POST went, and when the next is due. A delivery that has ended stays as it ended."""
    is_retry = outcome == "retry"
    assert is_retry == (retry_in_seconds is not None), "a delivery is due again exactly when it is retried"
    due_at = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, retry_in_seconds) if is_retry else None
    is_pending = WebhookDelivery.status == PENDING
    number = session.scalar(
        update(WebhookDelivery)
        .where(WebhookDelivery.id == delivery_id)
        .values(
            num_attempts=WebhookDelivery.num_attempts + 1,
            status=case((is_pending, "pending" if is_retry else outcome), else_=WebhookDelivery.status),
            due_at=case((is_pending, due_at), else_=None) if is_retry else None,
        )
        .returning(WebhookDelivery.num_attempts)
        .execution_options(synchronize_session=False)
    )
    if number is None:  # beyond retention
        return
    session.execute(
        insert(WebhookAttempt).values(
            id=new_id(),
            delivery_id=delivery_id,
            number=number,
            started_at=attempt.started_at,
            duration_ms=attempt.duration_ms,
            status_code=attempt.status_code,
            error=attempt.error,
            response_excerpt=attempt.response_excerpt,
        )
    )


async def deliveries_of(session: AsyncSession, job_id: UUID) -> list[Delivery]:
    """The deliveries of a job's events, oldest first, each with its attempts in order."""
    statement = select(WebhookDelivery).where(WebhookDelivery.job_id == job_id).order_by(WebhookDelivery.id)
    deliveries = (await session.scalars(statement)).all()
    attempts = await session.scalars(
        select(WebhookAttempt)
        .where(WebhookAttempt.delivery_id.in_([delivery.id for delivery in deliveries]))
        .order_by(WebhookAttempt.delivery_id, WebhookAttempt.number)
    )
    of_delivery: dict[UUID, list[WebhookAttempt]] = {delivery.id: [] for delivery in deliveries}
    for attempt in attempts:
        of_delivery[attempt.delivery_id].append(attempt)
    return [Delivery(delivery, of_delivery[delivery.id]) for delivery in deliveries]
