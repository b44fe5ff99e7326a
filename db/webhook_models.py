"""The tables of webhooks: where events go, what happened, and how its delivery went."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Index, LargeBinary, Text, false, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import NOW, Base


class WebhookEndpoint(Base):
    """Where a tenant's events go. The row without a URL holds the secret that signs per-job URLs."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    name: Mapped[str]
    url: Mapped[str | None]
    host: Mapped[str | None]  # of the URL, in one spelling
    secret: Mapped[str]  # whsec_ and base64
    old_secrets: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, server_default="[]")  # [{secret, until}]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))  # none: all
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    failing_since: Mapped[datetime | None]  # the first attempt that failed of those since the last success
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]

    __table_args__ = (
        Index("webhook_endpoints_default", "tenant", unique=True, postgresql_where=text("url IS NULL")),
        Index("webhook_endpoints_tenant", "tenant"),
    )


class WebhookEvent(Base):
    """Something that happened to a job or a batch, once. Written in the transaction that made it happen."""

    __tablename__ = "webhook_events"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    job_id: Mapped[UUID | None]  # None: of a batch, or a test
    type: Mapped[str]  # of `db.event_types`
    body: Mapped[bytes] = mapped_column(LargeBinary)  # the same bytes at every attempt
    is_test: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("webhook_events_job", "job_id"), Index("webhook_events_tenant", "tenant", "id"))


class WebhookDelivery(Base):
    """One event on its way to one endpoint."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[UUID] = mapped_column(primary_key=True)  # of the event's time
    event_id: Mapped[UUID]
    endpoint_id: Mapped[UUID]
    job_id: Mapped[UUID | None]
    url: Mapped[str]
    tenant: Mapped[str]
    host: Mapped[str]  # of the URL, in one spelling; with the tenant, its lane
    status: Mapped[str] = mapped_column(server_default="pending")  # pending | delivered | failed
    num_attempts: Mapped[int] = mapped_column(server_default="0")
    num_before_replay: Mapped[int] = mapped_column(server_default="0")  # of those; the schedule counts from here
    due_at: Mapped[datetime | None] = mapped_column(server_default=NOW)  # None once it ended; moved ahead while leased
    sending_until: Mapped[datetime | None]  # the end of the lease of an attempt under way
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("webhook_deliveries_due", "due_at", postgresql_where=text("status = 'pending'")),
        Index("webhook_deliveries_lane", "tenant", "host", "due_at", postgresql_where=text("status = 'pending'")),
        Index("webhook_deliveries_job", "job_id"),
        Index("webhook_deliveries_event", "event_id", "endpoint_id", unique=True),
        Index("webhook_deliveries_endpoint", "endpoint_id", "id"),
    )


class WebhookAttempt(Base):
    """One POST, as it went."""

    __tablename__ = "webhook_attempts"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    delivery_id: Mapped[UUID]
    number: Mapped[int]
    started_at: Mapped[datetime]
    duration_ms: Mapped[int]
    status_code: Mapped[int | None]
    error: Mapped[str | None]
    response_excerpt: Mapped[str | None]

    __table_args__ = (Index("webhook_attempts_delivery", "delivery_id", "number", unique=True),)
