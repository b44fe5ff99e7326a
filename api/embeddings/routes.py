"""POST /v1/embeddings: jobs in OpenAI's dress, one for each input, answered when all have ended."""

import asyncio
import json
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from api.auth import CallerDep
from api.embeddings.embed import cancel_embeddings, submissions_of, told, wait_for_embeddings
from api.embeddings.schemas import EmbeddingCreate, EmbeddingList
from api.examples import EMBEDDING_EXAMPLES
from api.leaving import CLIENT_GONE, until_disconnect
from api.schemas import error_replies
from api.services import ServicesDep
from api.submit import submit_all
from db.job_queries import JobRow

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/embeddings",
    summary="Embed texts",
    response_description="The vectors.",
    response_model=EmbeddingList,
    responses=error_replies(400, 401, 404, 408, 413, 429, 500, 503, 504),
)
async def create_embeddings(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    body: Annotated[EmbeddingCreate, Body(openapi_examples=EMBEDDING_EXAMPLES)],
) -> Response:
    """As OpenAI has it, for any OpenAI client: a vector of length 1 for each input, of the model's last hidden states.

    It is their mean, or the last token's, as the operator has set HEADRACE_EMBEDDING_POOLING. Each input is a job and
    queues as one; all are accepted, or none. Leaving cancels them, and so does the failure of one.
    """
    rows = await submit_all(services, caller, submissions_of(body))
    ended = asyncio.create_task(wait_for_embeddings(services, rows))
    gone = asyncio.create_task(until_disconnect(request.receive))
    is_over = False
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            return Response(status_code=CLIENT_GONE)
        rows, is_over = ended.result(), True
    finally:
        gone.cancel()
        ended.cancel()
        if not is_over:
            cancel_embeddings(services, caller, rows)
    return await asyncio.to_thread(_answer, rows, body.encoding_format)


def _answer(rows: list[JobRow], encoding_format: str) -> Response:
    """Made on a thread: thousands of vectors are millions of numbers."""
    return Response(json.dumps(told(rows, encoding_format=encoding_format)), media_type="application/json")
