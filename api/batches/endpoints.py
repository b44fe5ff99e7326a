"""The endpoints that a batch may call: what the same body is when it comes by HTTP. New ones are added here."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from api.auth import Caller
from api.chat.dress import ChatDress
from api.chat.routes import submission_of as chat_submission_of
from api.chat.schemas import ChatCreate
from api.completions.dress import CompletionDress
from api.completions.routes import submissions_of
from api.completions.schemas import CompletionCreate
from api.embeddings.embed import submissions_of as embeddings_of
from api.embeddings.embed import told
from api.embeddings.schemas import EmbeddingCreate
from api.errors import invalid
from api.responses.reading import reading_of
from api.responses.routes import submission_of as response_submission_of
from api.responses.schemas import ResponseCreate
from api.responses.view import response_of
from api.services import Services
from api.submission import Submission
from db.job_queries import JobRow

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class BatchEndpoint(Generic[Body]):
    """How a line becomes a job, and what the success of that job answers; both raise what the client would get."""

    schema: type[Body]
    submission: Callable[[Services, Caller, Body], Awaitable[Submission]]
    answer: Callable[[Services, JobRow, Body], Awaitable[dict[str, Any]]]


async def _completion_submission(services: Services, caller: Caller, body: CompletionCreate) -> Submission:
    submissions = submissions_of(body, None)
    if len(submissions) > 1:
        raise invalid("In a batch send one prompt in a line, and the others in lines of their own.", param="prompt")
    return submissions[0]


async def _chat_submission(services: Services, caller: Caller, body: ChatCreate) -> Submission:
    return chat_submission_of(body, None)


async def _embedding_submission(services: Services, caller: Caller, body: EmbeddingCreate) -> Submission:
    submissions = embeddings_of(body)
    if len(submissions) > 1:
        raise invalid("In a batch send one input in a line, and the others in lines of their own.", param="input")
    return submissions[0]


async def _response_submission(services: Services, caller: Caller, body: ResponseCreate) -> Submission:
    return await response_submission_of(services, caller, body, None)


async def _completion(services: Services, row: JobRow, body: CompletionCreate) -> dict[str, Any]:
    dress = CompletionDress(services, body, [row])
    await dress.prepare()
    return dress.whole([row])


async def _chat(services: Services, row: JobRow, body: ChatCreate) -> dict[str, Any]:
    dress = ChatDress(services, body, row.job)
    await dress.prepare()
    return dress.whole([row])


async def _embedding(services: Services, row: JobRow, body: EmbeddingCreate) -> dict[str, Any]:
    return told([row], encoding_format=body.encoding_format)


async def _response(services: Services, row: JobRow, body: ResponseCreate) -> dict[str, Any]:
    return response_of(row, await reading_of(services, row))


ENDPOINTS: dict[str, BatchEndpoint[Any]] = {
    "/v1/responses": BatchEndpoint(ResponseCreate, _response_submission, _response),
    "/v1/chat/completions": BatchEndpoint(ChatCreate, _chat_submission, _chat),
    "/v1/completions": BatchEndpoint(CompletionCreate, _completion_submission, _completion),
    "/v1/embeddings": BatchEndpoint(EmbeddingCreate, _embedding_submission, _embedding),
}
