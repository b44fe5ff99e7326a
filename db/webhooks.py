"""The webhook outbox: what is due, leased to one sender at a time, and how each attempt went."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import case, func, insert, text, update
from sqlalchemy.orm import Session

from db.ids import new_id
from db.models import WebhookAttempt, WebhookDelivery

PENDING = text("'pending'")
Lane = tuple[str, str]  # tenant and host: what can be slow as one. A tenant slows down no other, whatever it sends to
NUM_OLDEST = 1000  # due deliveries looked at in order; while there are more, the lanes are looked up one by one
DELETED = "the endpoint was deleted"


@dataclass(frozen=True)
class Due:
    """A delivery to attempt now, this sender's until its lease ends."""

    delivery_id: UUID
    event_id: UUID
    endpoint_id: UUID
    job_id: UUID | None
    tenant: str
    host: str
    url: str
    secrets: list[str]  # that sign it, the newest first
    body: bytes
    is_test: bool
    num_attempts: int  # made so far, since the last replay
    withheld: str | None  # why it must not be sent
    is_failing: bool  # its endpoint, since some time

    @property
    def lane(self) -> Lane:
        """What it shares a limit with."""
        return self.tenant, self.host


@dataclass(frozen=True)
class Attempt:
    """One POST. `error` says why it failed, None when it did not; an unanswered one has no `status_code`."""

    started_at: datetime
    duration_ms: int
    status_code: int | None
    error: str | None
    response_excerpt: str | None


# The oldest due of each lane, up to its room, then the oldest of each tenant, up to its own. The lanes are those of the
# oldest due; while a backlog hides others, all lanes come from hops along their index, each over the rows of one lane.
# Rows are compared as wholes because that index alone serves it: for single columns the planner may walk the backlog.
LEASE_DUE = text(f"""
    WITH RECURSIVE busy AS (
        SELECT * FROM unnest(
            CAST(:tenants AS text[]), CAST(:hosts AS text[]), CAST(:counts AS int[]), CAST(:limits AS int[])
        ) AS busy(tenant, host, num_sending, lane_limit)
    ), tenants AS (
        SELECT tenant, sum(num_sending) AS num_sending FROM busy GROUP BY tenant
    ), oldest AS MATERIALIZED (
        SELECT tenant, host FROM webhook_deliveries
        WHERE status = 'pending' AND due_at <= statement_timestamp()
        ORDER BY due_at LIMIT :num_oldest
    ), hop AS (
        (SELECT tenant, host FROM webhook_deliveries
         WHERE status = 'pending' AND (SELECT count(*) FROM oldest) = :num_oldest
         ORDER BY tenant, host LIMIT 1)
        UNION ALL
        SELECT beyond.tenant, beyond.host FROM hop CROSS JOIN LATERAL (
            SELECT tenant, host FROM webhook_deliveries d
            WHERE status = 'pending' AND (d.tenant, d.host) > (hop.tenant, hop.host)
            ORDER BY tenant, host LIMIT 1
        ) beyond
    ), lanes AS (
        SELECT tenant, host FROM oldest UNION SELECT tenant, host FROM hop
    ), due AS (
        SELECT d.id, d.due_at, coalesce(tenants.num_sending, 0)
            + row_number() OVER (PARTITION BY tenant ORDER BY d.due_at, d.id) AS place
        FROM lanes LEFT JOIN busy USING (tenant, host) LEFT JOIN tenants USING (tenant)
        CROSS JOIN LATERAL (
            SELECT id, due_at FROM webhook_deliveries
            WHERE status = 'pending'
              AND (tenant, host, due_at) >= (lanes.tenant, lanes.host, '-infinity')
              AND (tenant, host, due_at) <= (lanes.tenant, lanes.host, statement_timestamp())
            ORDER BY tenant, host, due_at
            LIMIT greatest(coalesce(busy.lane_limit, :lane_limit) - coalesce(busy.num_sending, 0), 0)
        ) d
        WHERE coalesce(tenants.num_sending, 0) < :tenant_limit
    ), chosen AS (
        SELECT d.id, d.event_id, d.endpoint_id FROM webhook_deliveries d
        WHERE d.id IN (SELECT id FROM due WHERE place <= :tenant_limit ORDER BY due_at LIMIT :limit)
          AND d.status = 'pending' AND d.due_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook_deliveries AS d SET
        due_at = clock_timestamp() + :lease_seconds * interval '1 second',
        sending_until = clock_timestamp() + :lease_seconds * interval '1 second'
    FROM chosen
    JOIN webhook_events AS event ON event.id = chosen.event_id
    LEFT JOIN webhook_endpoints AS endpoint ON endpoint.id = chosen.endpoint_id
    WHERE d.id = chosen.id
    RETURNING d.id AS delivery_id, d.event_id, d.endpoint_id, d.job_id, d.tenant, d.host,
        coalesce(endpoint.url, d.url) AS url, body, is_test, num_attempts - num_before_replay AS num_attempts,
        array_remove(secret || ARRAY(
            SELECT old->>'secret' FROM jsonb_array_elements(old_secrets) AS old
            WHERE CAST(old->>'until' AS timestamptz) > clock_timestamp()
        ), NULL) AS secrets,
        CASE WHEN endpoint.id IS NULL THEN '{DELETED}'
             WHEN disabled_at IS NOT NULL AND NOT is_test THEN 'the endpoint is disabled: ' || disabled_reason
        END AS withheld,
        failing_since IS NOT NULL AS is_failing
""")


def lease_due(
    session: Session,
    *,
    limit: int,
    lease_seconds: float,
    lane_limit: int = 1_000_000,
    tenant_limit: int = 1_000_000,
    busy: Mapping[Lane, int] | None = None,
    strained: Collection[Lane] = (),
) -> list[Due]:
    """Take at most `limit` due deliveries, in no order; nobody else gets them before `lease_seconds` are over.

    `busy` says how many the caller has under way in each lane: together with those, no lane gets more than
    `lane_limit`, a `strained` one no more than one, and no tenant more than `tenant_limit`.
    """
    counts = dict.fromkeys(strained, 0) | dict(busy or {})
    parameters = {
        "limit": limit,
        "lease_seconds": lease_seconds,
        "lane_limit": lane_limit,
        "tenant_limit": tenant_limit,
        "num_oldest": NUM_OLDEST,
        "tenants": [tenant for tenant, _ in counts],
        "hosts": [host for _, host in counts],
        "counts": list(counts.values()),
        "limits": [1 if lane in strained else lane_limit for lane in counts],
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
            sending_until=None,
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
