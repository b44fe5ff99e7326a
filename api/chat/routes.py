"""POST /v1/chat/completions: a job in OpenAI's dress, answered when it has ended or as it is written."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from api.auth import CallerDep
from api.chat.dress import ChatDress
from api.chat.schemas import ChatCreate
from api.chat.views import ChatCompletion
from api.examples import CHAT_EXAMPLES
from api.foreground import Foreground
from api.openai_fields import IdempotencyKey
from api.schemas import error_replies
from api.services import ServicesDep
from api.sse import stream_example
from api.submission import Submission
from api.submit import submit

DEFAULT_MAX_TOKENS = 4096  # where there is room for them: a message is to end by itself
CHUNK_EXAMPLE = """data: {"id":"chatcmpl-0193e4c2a1b47c3d8e5f60718293a4b5","object":"chat.completion.chunk",\
"created":1767268800,"model":"MODEL","service_tier":"default","choices":[{"index":0,"delta":{"content":"The Danube"},\
"logprobs":null,"finish_reason":null}]}

data: [DONE]

"""

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/chat/completions",
    summary="Continue a conversation",
    response_description="The message, or its chunks.",
    response_model=ChatCompletion,
    responses={**stream_example(CHUNK_EXAMPLE), **error_replies(400, 401, 404, 408, 413, 422, 429, 500, 503, 504)},
)
async def create_chat_completion(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    body: Annotated[ChatCreate, Body(openapi_examples=CHAT_EXAMPLES)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """As OpenAI has it, for any OpenAI client, with a model that has a chat template; leaving cancels the work.

    Tools are called in the way that the template teaches: Hermes' and Qwen's, Llama 3's or Mistral's. With
    `tool_choice` `required`, or a name, the output is held to a call of it, with arguments as its schema says.
    """
    row = await submit(services, caller, submission_of(body, idempotency_key))
    dress = ChatDress(services, body, row.job)
    foreground = Foreground(services, caller, [row], dress, is_kept=idempotency_key is not None)
    return await foreground.respond(request, is_streamed=body.stream)


def submission_of(body: ChatCreate, idempotency_key: str | None) -> Submission:
    """The job that it is."""
    return Submission(
        kind="chat",
        sent=body,
        prompt=None,
        messages=[message.as_template_variable() for message in body.messages],
        max_tokens=body.most_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=body.stream,
        idempotency_key=idempotency_key,
        tools=body.tool_use,
        template_variables=body.template_variables,
    )
