"""Where webhooks go, spelled when the URL comes: ends then write their deliveries in one statement."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Rows from before share the lane without a name."""
    op.add_column("job_inputs", sa.Column("webhook_host", sa.Text(), nullable=True))
    op.add_column("webhook_endpoints", sa.Column("host", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("webhook_endpoints", "host")
    op.drop_column("job_inputs", "webhook_host")
