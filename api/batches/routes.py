"""The batch API: make, look, list, cancel. `headrace batches` does the rest, see `api.batches.runner`."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query

from api.auth import CallerDep
from api.batches.schemas import BATCH_PREFIX, BatchCreate, BatchId, BatchList, BatchView, batch_view, window_of
from api.errors import ApiError, invalid, not_found
from api.examples import BATCH_EXAMPLES
from api.files.schemas import LONGEST_EXPIRY, PREFIX
from api.pages import parse_after
from api.schemas import error_replies
from api.services import ServicesDep
from db import batches, files
from db.batches import NewBatch
from db.ids import parse_id

router = APIRouter(tags=["Files and batches"])


@router.post(
    "/v1/batches",
    summary="Run a batch",
    response_description="The batch, accepted.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def create_batch(
    services: ServicesDep, caller: CallerDep, body: Annotated[BatchCreate, Body(openapi_examples=BATCH_EXAMPLES)]
) -> BatchView:
    """Run a file of requests, one per line, as jobs of the tier `low`, a few hundred at a time.

    A line is `{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}`; at most 50,000 of them.
    The file is checked first: a batch with a line that is no request, or one that wants a `stream`, has `failed`, and
    `errors` name lines and reasons. A line that its endpoint refuses is told in the error file, and the others run.

    Lines count neither among the jobs that a key may have at once nor in its rates: these are for what it sends itself.
    A response of a line can be retrieved like any other, unless its `store` is false; `background` changes nothing.
    """
    file_id = parse_id(PREFIX, body.input_file_id)
    async with services.sessions() as session:
        file = None if file_id is None else await files.get(session, caller.tenant, file_id, for_share=True)
        if file is None:
            message = f"No file with id '{body.input_file_id}'; upload it to /v1/files first."
            raise ApiError(404, message, code="file_not_found", param="input_file_id")
        if file.purpose != "batch":
            message = f"The file has the purpose '{file.purpose}'; upload it with the purpose 'batch'."
            raise invalid(message, param="input_file_id")
        expiry = body.output_expires_after
        new = NewBatch(
            tenant=caller.tenant,
            key_id=caller.key_id,
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            window=window_of(body.completion_window),
            output_expires_after=LONGEST_EXPIRY if expiry is None else expiry.seconds,
            metadata=body.metadata or {},
        )
        batch = await batches.create(session, new)
        await session.commit()
    return batch_view(batch)


@router.get(
    "/v1/batches/{batch_id}",
    summary="Get a batch",
    response_description="The batch.",
    responses=error_replies(401, 404, 503),
)
async def get_batch(services: ServicesDep, caller: CallerDep, batch_id: BatchId) -> BatchView:
    """The batch as it stands. Its counts are exact: a line is counted when its result is in a file, and once."""
    parsed = _parse(batch_id)
    async with services.autocommit() as session:
        batch = await batches.get(session, caller.tenant, parsed)
    if batch is None:
        raise not_found("batch", batch_id)
    return batch_view(batch)


@router.get(
    "/v1/batches",
    summary="List batches",
    response_description="The page.",
    responses=error_replies(400, 401, 503),
)
async def list_batches(
    services: ServicesDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(description="Id of the last batch of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Most batches in the page.")] = 20,
) -> BatchList:
    """Your batches, newest first, in pages."""
    first = parse_after(after, BATCH_PREFIX)
    async with services.autocommit() as session:
        rows = await batches.list_batches(session, caller.tenant, after=first, limit=limit + 1)
    return BatchList.of([batch_view(row) for row in rows], limit=limit)


@router.post(
    "/v1/batches/{batch_id}/cancel",
    summary="Cancel a batch",
    response_description="The batch.",
    responses=error_replies(401, 404, 503),
)
async def cancel_batch(services: ServicesDep, caller: CallerDep, batch_id: BatchId) -> BatchView:
    """End the batch as `cancelled`; what has ended stays in its files. One that has ended is returned as it is."""
    parsed = _parse(batch_id)
    async with services.sessions() as session:
        batch = await batches.request_cancel(session, caller.tenant, parsed)
        await session.commit()
    if batch is None:
        raise not_found("batch", batch_id)
    return batch_view(batch)


def _parse(batch_id: str) -> UUID:
    parsed = parse_id(BATCH_PREFIX, batch_id)
    if parsed is None:
        raise not_found("batch", batch_id)
    return parsed
