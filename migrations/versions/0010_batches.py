"""Batches run: their lines, what they count, and which jobs are theirs. Files that grow while a batch runs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

MOMENTS = ("in_progress_at", "finalizing_at", "cancelling_at")
TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
FILE_IDS = ("output_file_id", "error_file_id")


def upgrade() -> None:
    """Make the table and the columns. No batch has run before."""
    _create_batch_lines()
    op.execute("DELETE FROM batches")
    for name in FILE_IDS:
        op.alter_column("batches", name, nullable=False)
    op.add_column("batches", sa.Column("output_expires_after", sa.Integer(), nullable=False))
    op.add_column("batches", sa.Column("model", sa.Text()))
    for name in TOKENS:
        op.add_column("batches", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    for name in MOMENTS:
        op.add_column("batches", sa.Column(name, sa.DateTime(timezone=True)))
    op.create_index("batches_open", "batches", ["id"], postgresql_where=sa.text("ended_at IS NULL"))
    op.alter_column("files", "url", nullable=True)
    op.create_index("files_expiring", "files", ["expires_at"], postgresql_where=sa.text("expires_at IS NOT NULL"))
    op.add_column("jobs", sa.Column("batch_id", sa.Uuid()))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("jobs", "batch_id")
    op.drop_index("files_expiring", "files")
    op.execute("DELETE FROM files WHERE url IS NULL")
    op.alter_column("files", "url", nullable=False)
    op.drop_index("batches_open", "batches")
    for name in ("output_expires_after", "model", *TOKENS, *MOMENTS):
        op.drop_column("batches", name)
    for name in FILE_IDS:
        op.alter_column("batches", name, nullable=True)
    op.drop_table("batch_lines")


def _create_batch_lines() -> None:
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("result", sa.Text()),
        sa.PrimaryKeyConstraint("batch_id", "line"),
    )
    for status, column in (("pending", "place"), ("running", "line")):
        op.create_index(
            f"batch_lines_{status}",
            "batch_lines",
            ["batch_id", column],
            postgresql_where=sa.text(f"status = '{status}'"),
        )
