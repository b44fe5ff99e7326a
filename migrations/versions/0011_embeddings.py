"""Jobs whose output is a vector."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no row is written anew."""
    op.add_column("job_outputs", sa.Column("embedding", postgresql.ARRAY(sa.REAL())))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("job_outputs", "embedding")
