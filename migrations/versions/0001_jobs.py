"""The first schema: jobs, workers and keys. Jobs, their inputs and outputs are partitioned by day."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from db.partitions import ensure

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NOW = sa.text("clock_timestamp()")
PARTITIONED = ("jobs", "job_inputs", "job_outputs")
OTHERS = ("workers", "api_keys", "idempotency_keys")


def upgrade() -> None:
    """Make the tables, a partition for whatever has no day of its own, and those of the next days."""
    _create_jobs()
    _create_job_inputs()
    _create_job_outputs()
    _create_workers()
    _create_api_keys()
    _create_idempotency_keys()
    for table in PARTITIONED:
        op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
    ensure(Session(op.get_bind()))


def downgrade() -> None:
    """Drop them; partitions go with their tables."""
    for table in (*OTHERS, *PARTITIONED):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tier", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("num_prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("num_blocks", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("start_by", sa.DateTime(timezone=True)),
        sa.Column("finish_by", sa.DateTime(timezone=True)),
        sa.Column("run_for", sa.Float()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Uuid()),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tokens_at_crash", sa.Integer(), server_default="0", nullable=False),
        sa.Column("crash_log", postgresql.JSONB()),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True)),
        sa.Column("replay_of", sa.Uuid()),
        sa.Column("num_output_tokens", sa.Integer()),
        sa.Column("num_cached_tokens", sa.Integer()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
        postgresql_partition_by="RANGE (id)",
    )
    _index_jobs()


def _index_jobs() -> None:
    op.create_index(
        "jobs_limited",
        "jobs",
        ["id"],
        postgresql_where=sa.text(
            "status = 'queued' AND num_nonnulls(start_by, finish_by, run_for, cancel_requested_at) > 0"
        ),
    )
    op.create_index(
        "jobs_parked",
        "jobs",
        ["key_id", "model", "tier", "id"],
        postgresql_where=sa.text("status = 'queued' AND ready_at IS NULL"),
    )
    op.create_index(
        "jobs_queued", "jobs", ["model", "tier", "ready_at", "id"], postgresql_where=sa.text("status = 'queued'")
    )
    op.create_index(
        "jobs_ready_by_key",
        "jobs",
        ["key_id", "model", "tier"],
        postgresql_where=sa.text("status = 'queued' AND ready_at IS NOT NULL"),
    )
    op.create_index("jobs_running", "jobs", ["worker_id"], postgresql_where=sa.text("status = 'running'"))
    op.create_index("jobs_started", "jobs", ["model", "started_at"])
    op.create_index("jobs_tenant", "jobs", ["tenant", "id"])


def _create_job_inputs() -> None:
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("prompt", sa.Text()),
        sa.Column("messages", postgresql.JSONB()),
        sa.Column("prompt_token_ids", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("sampling", postgresql.JSONB(), nullable=False),
        sa.Column("webhook_url", sa.Text()),
        sa.Column("metadata", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index(
        "job_inputs_metadata",
        "job_inputs",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    )


def _create_job_outputs() -> None:
    op.create_table(
        "job_outputs",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("token_ids", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("text_offsets", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("logprobs", postgresql.JSONB()),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_partition_by="RANGE (job_id)",
    )


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_started", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokenizer_path", sa.Text(), nullable=False),
        sa.Column("chat_template", sa.Text()),
        sa.Column("max_model_len", sa.Integer(), nullable=False),
        sa.Column("max_num_seqs", sa.Integer(), nullable=False),
        sa.Column("block_size", sa.Integer(), nullable=False),
        sa.Column("num_blocks", sa.Integer(), nullable=False),
        sa.Column("vocab_size", sa.Integer(), nullable=False),
        sa.Column("bos_token", sa.Text()),
        sa.Column("eos_token", sa.Text()),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("workers_model", "workers", ["model", "renewed_at"])


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_index("idempotency_keys_created", "idempotency_keys", ["created_at"])
    op.create_index("idempotency_keys_job", "idempotency_keys", ["job_id"])
