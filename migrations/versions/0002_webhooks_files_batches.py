"""Webhooks: endpoints, events, deliveries and their attempts. Files and batches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    """Make the tables."""
    _create_webhook_endpoints()
    _create_webhook_events()
    _create_webhook_deliveries()
    _create_webhook_attempts()
    _create_files()
    _create_batches()


def downgrade() -> None:
    """Drop them."""
    for table in ("webhook_endpoints", "webhook_events", "webhook_deliveries", "webhook_attempts", "files", "batches"):
        op.drop_table(table)


def _create_webhook_endpoints() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text()),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "webhook_endpoints_default",
        "webhook_endpoints",
        ["tenant"],
        unique=True,
        postgresql_where=sa.text("url IS NULL"),
    )
    op.create_index("webhook_endpoints_tenant", "webhook_endpoints", ["tenant"])


def _create_webhook_events() -> None:
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("webhook_events_job", "webhook_events", ["job_id"])


def _create_webhook_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("num_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=NOW),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "webhook_deliveries_due", "webhook_deliveries", ["due_at"], postgresql_where=sa.text("status = 'pending'")
    )
    op.create_index(
        "webhook_deliveries_lane",
        "webhook_deliveries",
        ["tenant", "host", "due_at"],
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index("webhook_deliveries_job", "webhook_deliveries", ["job_id"])


def _create_webhook_attempts() -> None:
    op.create_table(
        "webhook_attempts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("delivery_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("response_excerpt", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("webhook_attempts_delivery", "webhook_attempts", ["delivery_id", "number"], unique=True)


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("files_tenant", "files", ["tenant", "id"])


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("output_file_id", sa.Uuid()),
        sa.Column("error_file_id", sa.Uuid()),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("num_total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_completed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("errors", postgresql.JSONB()),
        sa.Column("metadata", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("batches_tenant", "batches", ["tenant", "id"])
