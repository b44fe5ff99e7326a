"""Webhook endpoints that people manage: rotated secrets, health, replays, tests, and events that are of no job."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the indexes that the delivery logs and replays read."""
    op.add_column(
        "webhook_endpoints", sa.Column("old_secrets", postgresql.JSONB(), server_default="[]", nullable=False)
    )
    op.add_column("webhook_endpoints", sa.Column("failing_since", sa.DateTime(timezone=True)))
    op.add_column("webhook_endpoints", sa.Column("disabled_reason", sa.Text()))
    op.add_column("webhook_events", sa.Column("is_test", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("webhook_deliveries", sa.Column("sending_until", sa.DateTime(timezone=True)))
    op.add_column(
        "webhook_deliveries", sa.Column("num_before_replay", sa.Integer(), server_default="0", nullable=False)
    )
    for table in ("webhook_events", "webhook_deliveries"):
        op.alter_column(table, "job_id", nullable=True)
    op.create_index("webhook_events_tenant", "webhook_events", ["tenant", "id"])
    op.create_index("webhook_deliveries_event", "webhook_deliveries", ["event_id", "endpoint_id"], unique=True)
    op.create_index("webhook_deliveries_endpoint", "webhook_deliveries", ["endpoint_id", "id"])


def downgrade() -> None:
    """Drop them, with what is of no job."""
    op.drop_index("webhook_deliveries_endpoint", "webhook_deliveries")
    op.drop_index("webhook_deliveries_event", "webhook_deliveries")
    op.drop_index("webhook_events_tenant", "webhook_events")
    for table in ("webhook_events", "webhook_deliveries"):
        op.execute(f"DELETE FROM {table} WHERE job_id IS NULL")
        op.alter_column(table, "job_id", nullable=False)
    op.drop_column("webhook_deliveries", "num_before_replay")
    op.drop_column("webhook_deliveries", "sending_until")
    op.drop_column("webhook_events", "is_test")
    for column in ("disabled_reason", "failing_since", "old_secrets"):
        op.drop_column("webhook_endpoints", column)
