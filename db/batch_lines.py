"""The lines of a batch: a checkpoint for each.

A line becomes `running` in the transaction that makes its job, and ends in the one that keeps its result and counts it.
Either statement is guarded by the state that the line leaves, so whoever repeats it changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

ALL = 2**31 - 1
PAGE = 5000  # lines inserted by one statement
RESULT_PAGE, RESULT_BYTES = 200, 4_000_000  # results read by one statement: so many, and the one that passes so much


@dataclass(frozen=True)
class LinePlace:
    """A line of the input, and its place among those that run."""

    line: int
    custom_id: str
    place: int
    first_byte: int
    num_bytes: int


@dataclass(frozen=True)
class Line:
    """A line that is to run, or one whose job has ended; its job is None when somebody deleted it meanwhile."""

    line: int
    custom_id: str
    first_byte: int
    num_bytes: int
    job_id: UUID | None


@dataclass(frozen=True)
class LineResult:
    """How a line ended. `result` is its line of a file: of the output file if it completed, else of the error file."""

    line: int
    status: Literal["completed", "failed", "cancelled", "expired"]
    result: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


INSERT = text("""
    INSERT INTO batch_lines (batch_id, line, custom_id, place, first_byte, num_bytes)
    SELECT :batch_id, line, custom_id, place, first_byte, num_bytes
    FROM jsonb_to_recordset(:lines) AS given(line int, custom_id text, place int, first_byte bigint, num_bytes int)
""").bindparams(bindparam("lines", type_=JSONB))


async def insert(session: AsyncSession, batch_id: UUID, places: Sequence[LinePlace]) -> None:
    """Add the lines, all of them `pending`."""
    for first in range(0, len(places), PAGE):
        rows = [asdict(place) for place in places[first : first + PAGE]]
        await session.execute(INSERT, {"batch_id": batch_id, "lines": rows})


PENDING = text("""
    SELECT line, custom_id, first_byte, num_bytes, job_id FROM batch_lines
    WHERE batch_id = :batch_id AND status = 'pending'
    ORDER BY place
    LIMIT least(:limit, greatest(0, :window - (
        SELECT count(*) FROM batch_lines WHERE batch_id = :batch_id AND status = 'running'
    )))
""")


async def pending(session: AsyncSession, batch_id: UUID, *, limit: int, window: int = ALL) -> list[Line]:
    """The next lines to run, at most `limit`, and as many as may run beside those that do: `window` in all."""
    rows = await session.execute(PENDING, {"batch_id": batch_id, "window": window, "limit": limit})
    return [Line(*row) for row in rows]


# The lines are given twice: by the array the primary key finds them, whatever is known of so young a table.
CHECKPOINT = text("""
    UPDATE batch_lines SET status = 'running', job_id = given.job_id
    FROM unnest(CAST(:lines AS int[]), CAST(:job_ids AS uuid[])) AS given(line, job_id)
    WHERE batch_id = :batch_id AND batch_lines.line = ANY(CAST(:lines AS int[])) AND batch_lines.line = given.line
      AND status = 'pending'
""")


async def checkpoint(session: AsyncSession, batch_id: UUID, job_ids: Mapping[int, UUID]) -> bool:
    """Note the job of each line; False when one of them was pending no more: the caller makes none of these jobs."""
    parameters = {"batch_id": batch_id, "lines": list(job_ids), "job_ids": list(job_ids.values())}
    result = await session.execute(CHECKPOINT, parameters)
    return int(result.rowcount) == len(job_ids)  # type: ignore[attr-defined]


# The limit makes it a look into one partition's index for each line.
ENDED = text("""
    SELECT line, custom_id, first_byte, num_bytes, job.id
    FROM batch_lines
    LEFT JOIN LATERAL (SELECT id, jobs.status FROM jobs WHERE jobs.id = batch_lines.job_id LIMIT 1) AS job ON true
    WHERE batch_id = :batch_id AND batch_lines.status = 'running'
      AND (job.id IS NULL OR job.status NOT IN ('queued', 'running'))
    ORDER BY line LIMIT :limit
""")


async def ended(session: AsyncSession, batch_id: UUID, *, limit: int) -> list[Line]:
    """Lines that run no more, with their jobs."""
    return [Line(*row) for row in await session.execute(ENDED, {"batch_id": batch_id, "limit": limit})]


# What a line that ends adds to its batch, and to the file that it goes to, which is there from its first line on.
SETTLE = text("""
    WITH settled AS (
        UPDATE batch_lines SET status = given.status, result = given.result
        FROM jsonb_to_recordset(:results) AS given(
            line int, status text, result text, input_tokens bigint, output_tokens bigint, cached_tokens bigint
        )
        WHERE batch_id = :batch_id AND batch_lines.line = ANY(CAST(:lines AS int[])) AND batch_lines.line = given.line
          AND batch_lines.status IN ('pending', 'running')
        RETURNING given.*
    ), sums AS (
        SELECT count(*) FILTER (WHERE status = 'completed') AS num_completed,
               count(*) FILTER (WHERE status <> 'completed') AS num_failed,
               coalesce(sum(octet_length(result) + 1) FILTER (WHERE status = 'completed'), 0) AS output_bytes,
               coalesce(sum(octet_length(result) + 1) FILTER (WHERE status <> 'completed'), 0) AS error_bytes,
               coalesce(sum(input_tokens), 0) AS input_tokens,
               coalesce(sum(output_tokens), 0) AS output_tokens,
               coalesce(sum(cached_tokens), 0) AS cached_tokens
        FROM settled
    ), counted AS (
        UPDATE batches SET
            num_completed = batches.num_completed + sums.num_completed,
            num_failed = batches.num_failed + sums.num_failed,
            input_tokens = batches.input_tokens + sums.input_tokens,
            output_tokens = batches.output_tokens + sums.output_tokens,
            cached_tokens = batches.cached_tokens + sums.cached_tokens
        FROM sums WHERE id = :batch_id AND sums.num_completed + sums.num_failed > 0
        RETURNING batches.*, output_bytes, error_bytes
    )
    INSERT INTO files (id, tenant, filename, purpose, num_bytes, status, expires_at)
    SELECT
        file.id, tenant, 'batch_' || replace(counted.id::text, '-', '') || '_' || name || '.jsonl', 'batch_output',
        file.num_bytes, 'uploaded', clock_timestamp() + output_expires_after * interval '1 second'
    FROM counted, LATERAL (
        VALUES (output_file_id, 'output', output_bytes), (error_file_id, 'error', error_bytes)
    ) AS file(id, name, num_bytes)
    WHERE file.num_bytes > 0
    ON CONFLICT (id) DO UPDATE SET num_bytes = files.num_bytes + excluded.num_bytes
""").bindparams(bindparam("results", type_=JSONB))


async def settle(session: AsyncSession, batch_id: UUID, results: Sequence[LineResult]) -> None:
    """End the lines that have not ended yet, and count them, in the batch's row and its files."""
    lines, rows = [result.line for result in results], [asdict(result) for result in results]
    await session.execute(SETTLE, {"batch_id": batch_id, "lines": lines, "results": rows})


ANY_OPEN = text("""
    SELECT EXISTS (SELECT 1 FROM batch_lines WHERE batch_id = :batch_id AND status = 'pending')
        OR EXISTS (SELECT 1 FROM batch_lines WHERE batch_id = :batch_id AND status = 'running')
""")
RUNNING = text("SELECT job_id FROM batch_lines WHERE batch_id = :batch_id AND status = 'running' ORDER BY line")


async def any_open(session: AsyncSession, batch_id: UUID) -> bool:
    """Whether a line has yet to end."""
    return bool(await session.scalar(ANY_OPEN, {"batch_id": batch_id}))


async def running_jobs(session: AsyncSession, batch_id: UUID) -> list[UUID]:
    """The jobs of the lines that run."""
    return list(await session.scalars(RUNNING, {"batch_id": batch_id}))


RESULTS = text("""
    SELECT line, result FROM (
        SELECT line, result, sum(octet_length(result)) OVER (ORDER BY line) - octet_length(result) AS num_before
        FROM (
            SELECT line, result FROM batch_lines
            WHERE batch_id = :batch_id AND line > :after AND result IS NOT NULL
              AND (status = 'completed') = :is_output
            ORDER BY line LIMIT :limit
        ) AS page
    ) AS sized
    WHERE num_before < :bytes ORDER BY line
""")


async def results(session: AsyncSession, batch_id: UUID, *, is_output: bool, after: int) -> tuple[bytes, int | None]:
    """The next part of the output file, or else of the error file, after line `after`; and its last line, if any."""
    parameters: dict[str, Any] = {
        "batch_id": batch_id,
        "is_output": is_output,
        "after": after,
        "limit": RESULT_PAGE,
        "bytes": RESULT_BYTES,
    }
    rows = (await session.execute(RESULTS, parameters)).all()
    return "".join(f"{row.result}\n" for row in rows).encode(), rows[-1].line if rows else None


OF_FILE = text("""
    SELECT id, output_file_id = :file_id AS is_output FROM batches
    WHERE tenant = :tenant AND :file_id IN (output_file_id, error_file_id) LIMIT 1
""")


async def batch_of_file(session: AsyncSession, tenant: str, file_id: UUID) -> tuple[UUID, bool] | None:
    """The batch that writes the file, and whether it is its output file."""
    row = (await session.execute(OF_FILE, {"tenant": tenant, "file_id": file_id})).one_or_none()
    return None if row is None else (row.id, row.is_output)
