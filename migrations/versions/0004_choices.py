"""Several outputs of one prompt, and log probabilities of the prompt's own tokens."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no row is written anew."""
    op.add_column("jobs", sa.Column("num_choices", sa.SmallInteger(), server_default="1", nullable=False))
    op.add_column("job_outputs", sa.Column("choices", postgresql.ARRAY(sa.Integer())))
    op.add_column("job_outputs", sa.Column("finish_reasons", postgresql.ARRAY(sa.Text())))
    op.add_column("job_outputs", sa.Column("prompt_logprobs", postgresql.JSONB()))


def downgrade() -> None:
    """Drop them."""
    for column in ("prompt_logprobs", "finish_reasons", "choices"):
        op.drop_column("job_outputs", column)
    op.drop_column("jobs", "num_choices")
