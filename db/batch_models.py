"""The tables of files and batches."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import NOW, NULLABLE_JSONB, Base


class File(Base):
    """An uploaded or produced file; the bytes are at `url`."""

    __tablename__ = "files"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    filename: Mapped[str]
    purpose: Mapped[str]
    url: Mapped[str | None]  # None: of a batch that runs, whose lines have the content so far
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str]  # uploading (nobody sees it) | uploaded (it grows) | processed
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime | None]

    __table_args__ = (
        Index("files_tenant", "tenant", "id"),
        Index("files_expiring", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    )


class Batch(Base):
    """A file of requests, run line by line as jobs. Its counts and its files grow in the transaction of each line."""

    __tablename__ = "batches"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    key_id: Mapped[UUID]
    endpoint: Mapped[str]
    input_file_id: Mapped[UUID]
    output_file_id: Mapped[UUID]  # there is such a file once a line has succeeded
    error_file_id: Mapped[UUID]  # and such a one once a line has not
    completion_window: Mapped[str]
    output_expires_after: Mapped[int]  # seconds, from the batch's end
    # validating -> in_progress -> finalizing -> completed | expired; validating -> failed;
    # validating | in_progress -> cancelling -> cancelled
    status: Mapped[str]
    model: Mapped[str | None]  # of all lines; None where they name several
    num_total: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")  # of the lines that ended, as the rest
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(NULLABLE_JSONB)  # why it failed: code, line, ...
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        Index("batches_tenant", "tenant", "id"),
        Index("batches_open", "id", postgresql_where=text("ended_at IS NULL")),
    )


class BatchLine(Base):
    """One request of a batch, where it stands in the input file, and how far it came."""

    __tablename__ = "batch_lines"

    batch_id: Mapped[UUID] = mapped_column(primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True)  # in the input file, from 1
    custom_id: Mapped[str]
    place: Mapped[int]  # the order in which lines run: what begins alike runs together
    first_byte: Mapped[int] = mapped_column(BigInteger)
    num_bytes: Mapped[int]
    status: Mapped[str] = mapped_column(server_default="pending")  # -> running -> completed|failed|cancelled|expired
    job_id: Mapped[UUID | None]  # None: it is pending, or it never became a job
    result: Mapped[str | None]  # its line of the output or error file

    __table_args__ = (
        Index("batch_lines_pending", "batch_id", "place", postgresql_where=text("status = 'pending'")),
        Index("batch_lines_running", "batch_id", "line", postgresql_where=text("status = 'running'")),
    )
