"""POST /v1/completions: a job in OpenAI's dress, answered when it has ended or as it is written."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from api.auth import CallerDep
from api.completions.dress import CompletionDress
from api.completions.schemas import DEFAULT_MAX_TOKENS, Completion, CompletionCreate
from api.errors import invalid
from api.examples import COMPLETION_EXAMPLES
from api.foreground import Foreground
from api.openai_fields import IdempotencyKey
from api.schemas import error_replies
from api.services import ServicesDep
from api.sse import stream_example
from api.submission import Submission
from api.submit import submit_all

CHUNK_EXAMPLE = """data: {"id":"cmpl-0193e4c2a1b47c3d8e5f60718293a4b5","object":"text_completion","created":1767268800,\
"model":"MODEL","choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":null}]}

data: [DONE]

"""

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/completions",
    summary="Complete a text",
    response_description="The completion, or its chunks.",
    response_model=Completion,
    responses={**stream_example(CHUNK_EXAMPLE), **error_replies(400, 401, 404, 408, 413, 422, 429, 500, 503, 504)},
)
async def create_completion(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    body: Annotated[CompletionCreate, Body(openapi_examples=COMPLETION_EXAMPLES)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """As OpenAI has it, for any OpenAI client. The work queues like every other job; leaving cancels it."""
    if idempotency_key is not None and len(body.prompts) > 1:
        raise invalid("With an Idempotency-Key send one prompt: the key stands for one job.", param="prompt")
    rows = await submit_all(services, caller, submissions_of(body, idempotency_key))
    dress = CompletionDress(services, body, rows)
    foreground = Foreground(services, caller, rows, dress, is_kept=idempotency_key is not None)
    return await foreground.respond(request, is_streamed=body.stream)


def submissions_of(body: CompletionCreate, idempotency_key: str | None) -> list[Submission]:
    """A job for each prompt."""
    return [_submission(body, prompt, idempotency_key) for prompt in body.prompts]


def _submission(body: CompletionCreate, prompt: str | list[int], idempotency_key: str | None) -> Submission:
    return Submission(
        kind="completion",
        sent=body,
        prompt=prompt,
        messages=None,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=body.stream,
        idempotency_key=idempotency_key,
    )
