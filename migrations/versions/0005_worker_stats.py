"""What an engine worker tells of its engine, for the metrics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("workers", sa.Column("stats", JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("workers", "stats")
