"""Dead letters: the dead jobs of a tenant, and the replays of a job, each found by an index."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("jobs_dead", "jobs", ["tenant", "id"], postgresql_where=sa.text("status = 'dead'"))
    op.create_index("jobs_replays", "jobs", ["replay_of"], postgresql_where=sa.text("replay_of IS NOT NULL"))


def downgrade() -> None:
    """Drop them."""
    op.drop_index("jobs_replays", "jobs")
    op.drop_index("jobs_dead", "jobs")
