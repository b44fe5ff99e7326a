"""Rows of files. A file is reserved before its bytes are written, and seen only once they all are.

So no bytes are ever without a row: what a killed upload left goes when its reservation runs out.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db.file_store import FileStore
from db.ids import new_id
from db.models import File

UPLOAD_HOURS = 6  # an upload that took longer is over
UPLOADING, PROCESSED = "uploading", "processed"

log = logging.getLogger(__name__)


class FileInUse(Exception):
    """A batch that has not ended reads or writes the file."""

    def __init__(self, batch_id: UUID) -> None:
        super().__init__(batch_id)
        self.batch_id = batch_id


IN_USE = text("""
    SELECT id FROM batches
    WHERE ended_at IS NULL AND CAST(:file_id AS uuid) IN (input_file_id, output_file_id, error_file_id)
    LIMIT 1
""")


async def reserve(session: AsyncSession, tenant: str, store: FileStore, *, filename: str, purpose: str) -> File:
    """Make the row of a file that is to be written to its `url`."""
    file_id = new_id()
    file = File(
        id=file_id,
        tenant=tenant,
        filename=filename,
        purpose=purpose,
        url=store.url_of(file_id),
        num_bytes=0,
        status=UPLOADING,
        expires_at=await _in_seconds(session, timedelta(hours=UPLOAD_HOURS).total_seconds()),
    )
    session.add(file)
    await session.flush()
    return file


async def publish(session: AsyncSession, file_id: UUID, *, num_bytes: int, expires_after: int | None) -> File | None:
    """Show the file, whose bytes are all there; None when its reservation ran out. `expires_after`: in seconds."""
    expires_at = None if expires_after is None else await _in_seconds(session, expires_after)
    published: File | None = await session.scalar(
        update(File)
        .where(File.id == file_id, File.status == UPLOADING)
        .values(status=PROCESSED, num_bytes=num_bytes, expires_at=expires_at)
        .returning(File)
        .execution_options(populate_existing=True)
    )
    return published


async def get(session: AsyncSession, tenant: str, file_id: UUID, *, for_share: bool = False) -> File | None:
    """A file of the tenant's. `for_share` keeps it from being deleted until the transaction ends."""
    statement = select(File).where(File.id == file_id, File.tenant == tenant, File.status != UPLOADING)
    if for_share:
        statement = statement.with_for_update(read=True)
    file: File | None = await session.scalar(statement)
    return file


async def list_files(
    session: AsyncSession, tenant: str, *, purpose: str | None, is_ascending: bool, after: UUID | None, limit: int
) -> Sequence[File]:
    """The tenant's files by age, from after the file `after` on."""
    statement = select(File).where(File.tenant == tenant, File.status != UPLOADING).limit(limit)
    if purpose is not None:
        statement = statement.where(File.purpose == purpose)
    if after is not None:
        statement = statement.where(File.id > after if is_ascending else File.id < after)
    ordered = statement.order_by(File.id if is_ascending else File.id.desc())
    return (await session.scalars(ordered)).all()


async def lock_unused(session: AsyncSession, tenant: str, file_id: UUID) -> File | None:
    """The file, locked, as `remove` wants it; None when the tenant has no such file. Raises FileInUse."""
    statement = select(File).where(File.id == file_id, File.tenant == tenant, File.status != UPLOADING)
    file: File | None = await session.scalar(statement.with_for_update())
    if file is not None:
        batch_id = await session.scalar(IN_USE, {"file_id": file_id})
        if batch_id is not None:
            raise FileInUse(batch_id)
    return file


async def remove(session: AsyncSession, file_id: UUID) -> None:
    """Remove the row of a file whose bytes are gone."""
    await session.execute(delete(File).where(File.id == file_id))


def remove_expired(engine: Engine, store: FileStore) -> int:
    """Remove files that have expired, with their bytes; returns how many. One that fails is left to the next run."""
    num_removed, after = 0, UUID(int=0)
    while True:
        with Session(engine) as session, session.begin():
            expired = session.scalar(
                select(File)
                .where(File.expires_at <= func.clock_timestamp(), File.id > after)
                .order_by(File.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            if expired is None:
                return num_removed
            after = expired.id
            num_removed += _remove_one(session, store, expired)


def _remove_one(session: Session, store: FileStore, file: File) -> bool:
    if session.scalar(IN_USE, {"file_id": file.id}) is not None:
        return False
    try:
        if file.url is not None:
            store.delete(file.url)
    except Exception as error:  # whatever the store of this one says, the others are to go
        log.warning("file not removed in this run", extra={"file_id": str(file.id), "error": str(error)})
        return False
    session.delete(file)
    return True


async def _in_seconds(session: AsyncSession, seconds: float) -> datetime:
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return now + timedelta(seconds=seconds)
