"""What one key may do: submits and tokens in a minute, and jobs at once."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NAMES = ("requests_per_minute", "tokens_per_minute", "concurrent_jobs")


def upgrade() -> None:
    """Add the columns. The keys from before follow the settings."""
    for name in NAMES:
        op.add_column("api_keys", sa.Column(name, sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in NAMES:
        op.drop_column("api_keys", name)
