"""The life of a batch. Its status changes here, each time by a guarded UPDATE that says which states it may leave.

validating -> in_progress -> finalizing -> completed | expired
validating -> failed
validating | in_progress -> cancelling -> cancelled
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from db import batch_lines
from db.batch_lines import LinePlace
from db.events import write_batch_event
from db.ids import new_id
from db.models import Batch, File

MOST_OPEN = 1000  # batches looked at in a round


@dataclass(frozen=True)
class NewBatch:
    """A batch that was checked, but for its lines."""

    tenant: str
    key_id: UUID
    endpoint: str
    input_file_id: UUID
    completion_window: str
    window: timedelta
    output_expires_after: int  # seconds
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Open:
    """A batch that has not ended. `is_due`: its window is over."""

    batch: Batch
    is_due: bool


async def create(session: AsyncSession, new: NewBatch) -> Batch:
    """Insert the batch."""
    now = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    batch = Batch(
        id=new_id(),
        tenant=new.tenant,
        key_id=new.key_id,
        endpoint=new.endpoint,
        input_file_id=new.input_file_id,
        output_file_id=new_id(),
        error_file_id=new_id(),
        completion_window=new.completion_window,
        output_expires_after=new.output_expires_after,
        status="validating",
        metadata_=new.metadata,
        created_at=now,
        expires_at=now + new.window,
    )
    session.add(batch)
    await session.flush()
    await session.refresh(batch)
    return batch


async def get(session: AsyncSession, tenant: str, batch_id: UUID) -> Batch | None:
    """A batch of the tenant's."""
    batch: Batch | None = await session.scalar(select(Batch).where(Batch.id == batch_id, Batch.tenant == tenant))
    return batch


async def list_batches(session: AsyncSession, tenant: str, *, after: UUID | None, limit: int) -> Sequence[Batch]:
    """The tenant's batches, the newest first, from after the batch `after` on."""
    statement = select(Batch).where(Batch.tenant == tenant).order_by(Batch.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(Batch.id < after)
    return (await session.scalars(statement)).all()


async def open_batches(session: AsyncSession) -> list[Open]:
    """What there is to do: what is to end first, then each tenant's oldest, so that none fills the round."""
    is_due = Batch.expires_at <= func.clock_timestamp()
    is_to_end = or_(is_due, Batch.status == "cancelling")
    turn = func.row_number().over(partition_by=Batch.tenant, order_by=Batch.id)
    unended = select(Batch, is_due).where(Batch.ended_at.is_(None))
    rows = await session.execute(unended.order_by(is_to_end.desc(), turn, Batch.id).limit(MOST_OPEN))
    return [Open(batch, due) for batch, due in rows]


async def input_url(session: AsyncSession, batch: Batch) -> str | None:
    """Where the batch's lines are; None when the file is gone."""
    url: str | None = await session.scalar(select(File.url).where(File.id == batch.input_file_id))
    return url


async def begin(session: AsyncSession, batch_id: UUID, places: Sequence[LinePlace], model: str | None) -> bool:
    """Take the lines up and begin to run them; False when the batch is validating no more, and nothing is changed."""
    begun = await session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == "validating")
        .values(status="in_progress", in_progress_at=func.clock_timestamp(), num_total=len(places), model=model)
        .returning(Batch.id)
    )
    if begun is None:
        return False
    await batch_lines.insert(session, batch_id, places)
    return True


async def fail(session: AsyncSession, batch_id: UUID, errors: list[dict[str, Any]]) -> None:
    """End a batch whose input is wrong, and tell of it."""
    failed = await session.scalar(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == "validating")
        .values(status="failed", errors=errors, ended_at=func.clock_timestamp())
        .returning(Batch.id)
    )
    if failed is not None:
        await session.run_sync(write_batch_event, batch_id)


async def request_cancel(session: AsyncSession, tenant: str, batch_id: UUID) -> Batch | None:
    """The batch, being cancelled unless that came too late; None when the tenant has no such batch."""
    await session.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.tenant == tenant, Batch.status.in_(("validating", "in_progress")))
        .values(status="cancelling", cancelling_at=func.clock_timestamp())
    )
    return await get(session, tenant, batch_id)


async def finalize(session: AsyncSession, batch_id: UUID) -> Batch | None:
    """The batch, with its final counts, if all its lines have ended: its files are to be written now."""
    if await batch_lines.any_open(session, batch_id):
        return None
    await session.execute(
        update(Batch)
        .where(Batch.id == batch_id, Batch.status == "in_progress")
        .values(status="finalizing", finalizing_at=func.clock_timestamp())
    )
    is_ready = Batch.status.in_(("finalizing", "cancelling"))
    batch: Batch | None = await session.scalar(
        select(Batch).where(Batch.id == batch_id, is_ready).execution_options(populate_existing=True)
    )
    return batch


END = text("""
    WITH ended AS (
        UPDATE batches SET ended_at = clock_timestamp(), status = CASE
            WHEN status = 'cancelling' THEN 'cancelled'
            WHEN EXISTS (SELECT 1 FROM batch_lines WHERE batch_id = batches.id AND batch_lines.status = 'expired')
            THEN 'expired'
            ELSE 'completed' END
        WHERE id = :batch_id AND status IN ('finalizing', 'cancelling')
        RETURNING id, status, output_expires_after
    ), shown AS (
        UPDATE files SET url = given.url, status = 'processed',
            expires_at = clock_timestamp() + ended.output_expires_after * interval '1 second'
        FROM jsonb_to_recordset(:urls) AS given(id uuid, url text), ended
        WHERE files.id = given.id
    )
    SELECT status FROM ended
""").bindparams(bindparam("urls", type_=JSONB))


async def end(session: AsyncSession, batch_id: UUID, urls: Sequence[dict[str, str]]) -> str | None:
    """End a batch whose files are at `urls` ({id, url} of each); returns its status, None if somebody else did."""
    status: str | None = await session.scalar(END, {"batch_id": batch_id, "urls": list(urls)})
    if status is not None:
        await session.run_sync(write_batch_event, batch_id)
    return status
