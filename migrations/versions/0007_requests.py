"""What was sent of a response, beside what a job of any kind has."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("job_inputs", sa.Column("request", JSONB(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("job_inputs", "request")
