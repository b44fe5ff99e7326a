"""The file API: upload, look, list, download, delete. Bytes go through in pieces, whatever a file's size."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Form, Query, UploadFile
from fastapi import File as FilePart
from fastapi.responses import StreamingResponse

from api.auth import Caller, CallerDep
from api.batches.schemas import BATCH_PREFIX
from api.body_limit import MAX_FILE_BYTES
from api.errors import NO_RETRY, ApiError, invalid, not_found, retry_after
from api.files.schemas import (
    LONGEST_EXPIRY,
    PREFIX,
    SHORTEST_EXPIRY,
    DeletedFile,
    FileId,
    FileList,
    FileObject,
    UploadPurpose,
    file_view,
)
from api.pages import parse_after
from api.schemas import error_replies
from api.services import Services, ServicesDep
from db import batch_lines, files
from db.file_store import CHUNK_BYTES, KeptFile
from db.ids import parse_id, public_id
from db.models import File
from db.texts import storable

MAX_FILENAME = 255  # characters; the end of a longer one is kept
STORE_RETRY_SECONDS = 10
R = TypeVar("R")

log = logging.getLogger(__name__)

router = APIRouter(tags=["Files and batches"])


@router.post(
    "/v1/files",
    summary="Upload a file",
    response_description="The file.",
    responses=error_replies(400, 401, 408, 413, 503),
)
async def upload_file(
    services: ServicesDep,
    caller: CallerDep,
    file: Annotated[UploadFile, FilePart(description="The file, of at most 200 MiB.")],
    purpose: Annotated[UploadPurpose, Form(description="`batch` for the requests of a batch.")],
    anchor: Annotated[
        Literal["created_at"] | None, Form(alias="expires_after[anchor]", description="Always `created_at`.")
    ] = None,
    seconds: Annotated[
        int | None,
        Form(
            alias="expires_after[seconds]",
            ge=SHORTEST_EXPIRY,
            le=LONGEST_EXPIRY,
            description="Seconds until it is removed. Default: 30 days for the purpose `batch`, else never.",
        ),
    ] = None,
) -> FileObject:
    """Keep a file. One of the purpose `batch` has a request per line, as JSON: POST /v1/batches says how."""
    size = file.size or 0
    if size > MAX_FILE_BYTES:
        message = f"The file has {size:,} bytes; at most {MAX_FILE_BYTES:,} are taken. Split it."
        raise ApiError(413, message, code="body_too_large", param="file")
    if size == 0:
        raise invalid("The file is empty.", param="file", code="empty_file")
    expires_after = seconds or (LONGEST_EXPIRY if purpose == "batch" else None)
    return file_view(await _keep(services, caller, file, purpose, expires_after))


@router.get(
    "/v1/files/{file_id}",
    summary="Get a file's description",
    response_description="The file.",
    responses=error_replies(401, 404, 503),
)
async def get_file(services: ServicesDep, caller: CallerDep, file_id: FileId) -> FileObject:
    """What is known of it, without its content."""
    return file_view(await find_file(services, caller, file_id))


@router.get(
    "/v1/files",
    summary="List files",
    response_description="The page.",
    responses=error_replies(400, 401, 503),
)
async def list_files(
    services: ServicesDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(description="Id of the last file of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Most files in the page.")] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query(description="By age: `desc` has the newest first.")] = "desc",
    purpose: Annotated[str | None, Query(max_length=64, description="Only files of this purpose.")] = None,
) -> FileList:
    """Your files, in pages."""
    if purpose is not None and "\x00" in purpose:
        raise invalid("'purpose' must not contain U+0000.", param="purpose")
    async with services.autocommit() as session:
        rows = await files.list_files(
            session,
            caller.tenant,
            purpose=purpose,
            is_ascending=order == "asc",
            after=parse_after(after, PREFIX),
            limit=limit + 1,
        )
    return FileList.of([file_view(row) for row in rows], limit=limit)


@router.get(
    "/v1/files/{file_id}/content",
    summary="Download a file",
    response_description="Its bytes.",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}, **error_replies(401, 404, 503)},
)
async def get_content(services: ServicesDep, caller: CallerDep, file_id: FileId) -> StreamingResponse:
    """The content. Of a file that a running batch writes, the lines that have ended so far."""
    file = await find_file(services, caller, file_id)
    headers = {"Content-Disposition": f"attachment; filename*=utf-8''{quote(file.filename)}"}
    if file.url is None:
        found = await _batch_of(services, caller, file)
        return StreamingResponse(_lines(services, *found), media_type="application/octet-stream", headers=headers)
    source = await _open(services, file.url, file_id)
    headers["Content-Length"] = str(file.num_bytes)
    return StreamingResponse(_pieces(source), media_type="application/octet-stream", headers=headers)


@router.delete(
    "/v1/files/{file_id}",
    summary="Delete a file",
    response_description="It is deleted.",
    responses=error_replies(401, 404, 409, 503),
)
async def delete_file(services: ServicesDep, caller: CallerDep, file_id: FileId) -> DeletedFile:
    """Delete a file. One that a batch reads or writes is kept until the batch has ended (409)."""
    parsed = parse_id(PREFIX, file_id)
    if parsed is None:
        raise not_found("file", file_id)
    async with services.sessions() as session:
        try:
            file = await files.lock_unused(session, caller.tenant, parsed)
        except files.FileInUse as error:
            name = public_id(BATCH_PREFIX, error.batch_id)
            message = f"The file belongs to '{name}', which has not ended; cancel it first, or wait for its end."
            raise ApiError(409, message, code="file_in_use", headers=NO_RETRY) from error
        if file is None:
            raise not_found("file", file_id)
        if file.url is not None:
            await _in_store(partial(services.files.delete, file.url))
        await files.remove(session, parsed)
        await session.commit()
    return DeletedFile(id=public_id(PREFIX, parsed))


async def find_file(services: Services, caller: Caller, public: str) -> File:
    """The tenant's file behind a public id, or the 404."""
    file_id = parse_id(PREFIX, public)
    file = None
    if file_id is not None:
        async with services.autocommit() as session:
            file = await files.get(session, caller.tenant, file_id)
    if file is None:
        raise not_found("file", public)
    return file


async def _keep(services: Services, caller: Caller, part: UploadFile, purpose: str, expires_after: int | None) -> File:
    """Row, bytes, row: see `db.files`."""
    name = storable((part.filename or "file")[-MAX_FILENAME:].encode(errors="replace").decode())
    async with services.sessions() as session:
        file = await files.reserve(session, caller.tenant, services.files, filename=name, purpose=purpose)
        await session.commit()
    assert file.url is not None, "it was just reserved"
    num_bytes = await _in_store(partial(services.files.copy, part.file, file.url))
    async with services.sessions() as session:
        published = await files.publish(session, file.id, num_bytes=num_bytes, expires_after=expires_after)
        await session.commit()
    if published is None:
        await _in_store(partial(services.files.delete, file.url))  # they came after what was to remove them
        raise ApiError(408, "The upload took too long; send it again.", code="body_timeout")
    return published


async def _in_store(act: Callable[[], R]) -> R:
    """Do it on a thread; a 503 when the store does not."""
    try:
        return await asyncio.to_thread(act)
    except FileNotFoundError:
        raise
    except OSError as error:
        log.warning("file store fails", extra={"error": str(error)})
        message = "The store of files does not answer, or is full; nothing was changed. Try again later."
        raise ApiError(503, message, code="file_store_unavailable", headers=retry_after(STORE_RETRY_SECONDS)) from error


async def _open(services: Services, url: str, file_id: str) -> KeptFile:
    try:
        return await _in_store(partial(services.files.open, url))
    except FileNotFoundError as error:
        raise ApiError(404, f"The content of '{file_id}' is gone.", code="file_not_found") from error


async def _pieces(source: KeptFile) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(source.read, CHUNK_BYTES):
            yield piece
    finally:
        source.close()


async def _batch_of(services: Services, caller: Caller, file: File) -> tuple[UUID, bool]:
    async with services.autocommit() as session:
        found = await batch_lines.batch_of_file(session, caller.tenant, file.id)
    if found is None:
        raise not_found("file", public_id(PREFIX, file.id))
    return found


async def _lines(services: Services, batch_id: UUID, is_output: bool) -> AsyncIterator[bytes]:
    """What a batch has written so far. Its lines are there for a while after its end, too."""
    after: int | None = 0
    while after is not None:
        async with services.autocommit() as session:
            part, after = await batch_lines.results(session, batch_id, is_output=is_output, after=after)
        if part:
            yield part
