"""The tables of webhooks: where events go, what happened, and how its delivery went."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
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
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    disabled_at: Mapped[datetime | None]

    __table_args__ = (
        Index("webhook_endpoints_default", "tenant", unique=True, postgresql_where=text("url IS NULL")),
        Index("webhook_endpoints_tenant", "tenant"),
    )


class WebhookEvent(Base):
    """Something that happened to a job, once. Written in the transaction that made it happen."""

    __tablename__ = "webhook_events"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    job_id: Mapped[UUID]
    type: Mapped[str]  # job.succeeded | job.failed | job.cancelled | job.expired | job.dead
    body: Mapped[bytes] = mapped_column(LargeBinary)  # the same bytes at every attempt
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("webhook_events_job", "job_id"),)


class WebhookDelivery(Base):
    """One event on its way to one endpoint."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    event_id: Mapped[UUID]
    endpoint_id: Mapped[UUID]
    job_id: Mapped[UUID]
    url: Mapped[str]
    tenant: Mapped[str]
    host: Mapped[str]  # of the URL, in one spelling; with the tenant, its lane
    status: Mapped[str] = mapped_column(server_default="pending")  # pending | delivered | failed
    num_attempts: Mapped[int] = mapped_column(server_default="0")
    due_at: Mapped[datetime | None] = mapped_column(server_default=NOW)  # None once it ended; moved ahead while leased
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("webhook_deliveries_due", "due_at", postgresql_where=text("status = 'pending'")),
        Index("webhook_deliveries_lane", "tenant", "host", "due_at", postgresql_where=text("status = 'pending'")),
        Index("webhook_deliveries_job", "job_id"),
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
