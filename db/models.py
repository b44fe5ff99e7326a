"""The tables. `jobs` and what hangs off it are partitioned by day, by the time inside their version 7 ids."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import REAL, BigInteger, Index, Integer, LargeBinary, SmallInteger, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from db.base import NOW, NULLABLE_JSONB, Base
from db.batch_models import Batch, BatchLine, File
from db.webhook_models import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookEvent

__all__ = [
    "ENDED",
    "NOW",
    "ApiKey",
    "Base",
    "Batch",
    "BatchLine",
    "File",
    "IdempotencyKey",
    "Job",
    "JobInput",
    "JobOutput",
    "Status",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookEvent",
    "Worker",
]


class Status(StrEnum):
    """States of a job; see the README's diagram."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"


ENDED = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.DEAD)


class Job(Base):
    """One generation, as narrow as ordering, ownership and ending need. Bodies live in `JobInput` and `JobOutput`."""

    __tablename__ = "jobs"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    key_id: Mapped[UUID]
    kind: Mapped[str]  # job | completion | chat | response | embedding: which serializer answers
    model: Mapped[str]
    tier: Mapped[int] = mapped_column(SmallInteger)  # level: 0 high, 1 normal, 2 low
    status: Mapped[str] = mapped_column(server_default=Status.QUEUED)
    stream: Mapped[bool]  # token events wanted
    seed: Mapped[int] = mapped_column(BigInteger)
    num_prompt_tokens: Mapped[int]
    max_tokens: Mapped[int]
    num_blocks: Mapped[int]  # KV estimate
    num_choices: Mapped[int] = mapped_column(SmallInteger, server_default="1")  # outputs, each of up to `max_tokens`

    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    ready_at: Mapped[datetime | None]  # None: parked
    started_at: Mapped[datetime | None]  # first claim
    ended_at: Mapped[datetime | None]
    start_by: Mapped[datetime | None]
    finish_by: Mapped[datetime | None]
    run_for: Mapped[float | None]  # seconds, counted from started_at

    attempt: Mapped[int] = mapped_column(server_default="0")  # only grows; the fence, with worker_id
    worker_id: Mapped[UUID | None]
    crashes: Mapped[int] = mapped_column(server_default="0")
    tokens_at_crash: Mapped[int] = mapped_column(server_default="0")  # a lost lease with more than these is no crash
    # [{attempt, worker, name, at, tokens}], one per crash
    crash_log: Mapped[list[dict[str, Any]] | None] = mapped_column(NULLABLE_JSONB)
    cancel_requested_at: Mapped[datetime | None]
    replay_of: Mapped[UUID | None]  # the ended job that this one repeats
    batch_id: Mapped[UUID | None]  # the batch that it is a line of

    num_output_tokens: Mapped[int | None]  # of all choices
    num_cached_tokens: Mapped[int | None]
    finish_reason: Mapped[str | None]  # stop | length, of the first choice; None when it did not succeed
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]

    __table_args__ = (
        Index("jobs_queued", "model", "tier", "ready_at", "id", postgresql_where=text("status = 'queued'")),
        # A key's window is counted in at most `key_window` rows of the first; the second finds who moves up.
        Index(
            "jobs_ready_by_key",
            "key_id",
            "model",
            "tier",
            postgresql_where=text("status = 'queued' AND ready_at IS NOT NULL"),
        ),
        Index(
            "jobs_parked",
            "key_id",
            "model",
            "tier",
            "id",
            postgresql_where=text("status = 'queued' AND ready_at IS NULL"),
        ),
        # What `expire_due` looks at: few jobs have limits.
        Index(
            "jobs_limited",
            "id",
            postgresql_where=text(
                "status = 'queued' AND num_nonnulls(start_by, finish_by, run_for, cancel_requested_at) > 0"
            ),
        ),
        Index("jobs_running", "worker_id", postgresql_where=text("status = 'running'")),
        Index("jobs_tenant", "tenant", "id"),
        Index("jobs_started", "model", "started_at"),
        Index("jobs_dead", "tenant", "id", postgresql_where=text("status = 'dead'")),
        Index("jobs_replays", "replay_of", postgresql_where=text("replay_of IS NOT NULL")),
        {"postgresql_partition_by": "RANGE (id)"},
    )


class JobInput(Base):
    """What the client sent, insert-only."""

    __tablename__ = "job_inputs"

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    prompt: Mapped[str | None]  # text as sent; None for token ids and messages
    messages: Mapped[list[dict[str, Any]] | None] = mapped_column(NULLABLE_JSONB)
    prompt_token_ids: Mapped[list[int]]
    sampling: Mapped[dict[str, Any]]  # db.sampling.Sampling as JSON
    webhook_url: Mapped[str | None]
    webhook_host: Mapped[str | None]  # of the URL, in one spelling
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    request: Mapped[dict[str, Any] | None] = mapped_column(NULLABLE_JSONB)  # what only its dress needs to answer

    __table_args__ = (
        Index("job_inputs_metadata", "metadata", postgresql_using="gin", postgresql_ops={"metadata": "jsonb_path_ops"}),
        {"postgresql_partition_by": "RANGE (job_id)"},
    )


class JobOutput(Base):
    """What the model wrote: enough to rebuild the token stream with the same numbers.

    A job that waits to run again has a row with what it had delivered; its end replaces it. Of a job with several
    choices the lists have the tokens of all of them, in the stream's order, as has `text`.
    """

    __tablename__ = "job_outputs"

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    text: Mapped[str]
    token_ids: Mapped[list[int]]
    text_offsets: Mapped[list[int]]  # characters of `text` delivered once token i was
    logprobs: Mapped[list[Any] | None] = mapped_column(NULLABLE_JSONB)  # per token: {"logprob", "top"}
    choices: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # per token; None where all are of the first
    # Per choice, stop | length, or None of one that was cut short; None where there is but one, or no worker says it.
    finish_reasons: Mapped[list[str | None] | None] = mapped_column(ARRAY(Text))
    # As `logprobs`, of the prompt's tokens from the second on.
    prompt_logprobs: Mapped[list[Any] | None] = mapped_column(NULLABLE_JSONB)
    embedding: Mapped[list[float] | None] = mapped_column(ARRAY(REAL))  # of length 1; of jobs of that kind

    __table_args__ = ({"postgresql_partition_by": "RANGE (job_id)"},)


class Worker(Base):
    """An engine worker's lease, and the card of the model it serves. A new row at every process start."""

    __tablename__ = "workers"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]  # Celery node name
    host: Mapped[str]  # host, boot and pid namespace: where `pid` means something
    pid: Mapped[int]
    pid_started: Mapped[int]  # clock ticks after boot, so that a reused pid is told apart
    status: Mapped[str]  # loading | ready | draining | lost | stopped
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    renewed_at: Mapped[datetime] = mapped_column(server_default=NOW)

    model: Mapped[str]
    tokenizer_path: Mapped[str]  # a tokenizer.json
    chat_template: Mapped[str | None]
    max_model_len: Mapped[int]
    max_num_seqs: Mapped[int]
    block_size: Mapped[int]
    num_blocks: Mapped[int]
    vocab_size: Mapped[int]
    bos_token: Mapped[str | None]
    eos_token: Mapped[str | None]
    dtype: Mapped[str]
    stats: Mapped[dict[str, Any] | None] = mapped_column(NULLABLE_JSONB)  # of its engine, as of the last renewal

    __table_args__ = (Index("workers_model", "model", "renewed_at"),)


class ApiKey(Base):
    """A bearer key, hashed. Jobs belong to its tenant."""

    __tablename__ = "api_keys"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    name: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)  # SHA-256 of the key; the key has 256 random bits
    hint: Mapped[str]  # its last characters, four at most
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))  # submit | read | admin | *
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    revoked_at: Mapped[datetime | None]
    # As `db.key_limits.KeyLimits` has them: 0 is any number, None the default of the settings.
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    concurrent_jobs: Mapped[int | None]


class IdempotencyKey(Base):
    """A submit that may be repeated. The row is inserted first, so that one of many copies wins."""

    __tablename__ = "idempotency_keys"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_digest: Mapped[bytes] = mapped_column(LargeBinary)
    job_id: Mapped[UUID]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (Index("idempotency_keys_job", "job_id"), Index("idempotency_keys_created", "created_at"))
