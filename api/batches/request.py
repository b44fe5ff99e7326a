"""The request of a batch's line: its text in the input file, its body as its endpoint reads it, or its refusal."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from api.batches.endpoints import ENDPOINTS
from api.batches.input import parse_body
from api.errors import ApiError, is_store_away, wrong_field
from api.grammars import CheckFailed
from api.services import Services
from db import batches
from db.batch_lines import Line
from db.models import Batch

PAGE = 32  # lines in one transaction
NOT_NOW = (429, 503)  # answers to a line that is to be tried again: the queue is full, no model has been loaded yet

log = logging.getLogger(__name__)


async def input_url(services: Services, batch: Batch) -> str | None:
    """Where the input file is; None when it was deleted, which is not done before its batch has ended."""
    async with services.autocommit() as session:
        return await batches.input_url(session, batch)


async def texts_of(services: Services, batch: Batch, lines: Sequence[Line]) -> list[bytes]:
    """The lines as they are in the input file. FileNotFoundError where somebody took that from its store."""
    url = await input_url(services, batch)
    assert url is not None, "a file is kept while a batch that has not ended reads it"
    places = [(line.first_byte, line.num_bytes) for line in lines]
    return await asyncio.to_thread(services.files.ranges, url, places)


def body_of(batch: Batch, text: bytes) -> Any:
    """The body, as its endpoint reads it; raises the ApiError that the endpoint would answer."""
    try:
        return ENDPOINTS[batch.endpoint].schema.model_validate(parse_body(text))
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        raise wrong_field(first | {"loc": ("body", *first["loc"])}) from None


def refusal_of(error: Exception, batch: Batch) -> ApiError:
    """What a client would have been answered; raises the error where a store is away, and the line is to wait."""
    if isinstance(error, ApiError):
        return error
    if is_store_away(error) or isinstance(error, OSError | CheckFailed):
        raise error
    log.exception("line failed", exc_info=error, extra={"batch_id": str(batch.id)})
    return ApiError(
        500, "The server met an error that it did not expect; its log has the details.", code="internal_error"
    )
