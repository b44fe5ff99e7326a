"""POST /v1/tokenize: what a prompt is in tokens, before anything is queued."""

from typing import Annotated, Self

from fastapi import APIRouter, Body
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field, model_validator

from api.auth import CallerDep
from api.examples import MODEL
from api.fields import ModelName, Text, wrong_field
from api.generation_fields import GenerationFields
from api.message_fields import Message, Messages, TemplateFields
from api.prompts import prompt_token_ids
from api.schemas import error_replies
from api.services import ServicesDep
from api.submission import Submission
from api.submit import find_card
from api.tool_fields import ToolFields

EXAMPLES: dict[str, Example] = {
    "text": {"summary": "A text", "value": {"model": MODEL, "prompt": "The best thing about rivers is"}},
    "messages": {
        "summary": "A conversation",
        "value": {"model": MODEL, "messages": [{"role": "user", "content": "What are rivers good for?"}]},
    },
}

router = APIRouter(tags=["Queues and models"])


class TokenizeRequest(TemplateFields, ToolFields):
    """Exactly one of `prompt` and `messages` is sent."""

    model: ModelName = Field(description="Name of a served model; GET /v1/models lists them.")
    prompt: Text | None = Field(None, description="A text, as a job or a completion would have it.")
    messages: Messages | None = Field(None, description="A conversation; the model's chat template makes the prompt.")

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            param = "prompt" if self.prompt is None else "messages"
            raise wrong_field(param, "send exactly one of 'prompt' and 'messages'")
        for name in ("tools", "chat_template_kwargs"):
            if self.messages is None and getattr(self, name):
                raise wrong_field(name, "needs 'messages'")
        return self


class Tokens(BaseModel):
    """A prompt in tokens, the model's beginning-of-sequence token included."""

    model: str = Field(description="The model whose tokens they are.", examples=["MODEL"])
    count: int = Field(description="How many there are: a job's `prompt_tokens`.", examples=[3])
    token_ids: list[int] = Field(description="Their ids; they may be sent as a `prompt`.", examples=[[101, 102, 103]])
    max_model_len: int = Field(description="Longest prompt and output together, in tokens.", examples=[2048])


@router.post(
    "/v1/tokenize",
    summary="Count a prompt's tokens",
    response_description="The tokens.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def tokenize(
    services: ServicesDep, caller: CallerDep, body: Annotated[TokenizeRequest, Body(openapi_examples=EXAMPLES)]
) -> Tokens:
    """A prompt's token ids, as a job of this model would read them. Nothing is queued, and it may be of any length."""
    card = await find_card(services, body.model)
    if body.messages is not None:
        token_ids = await prompt_token_ids(services, card, _submission(body, body.messages))
    else:
        token_ids = await services.texts.encode(await services.texts.tokenizer(card), body.prompt or "")
    return Tokens(model=card.model, count=len(token_ids), token_ids=token_ids, max_model_len=card.max_model_len)


def _submission(body: TokenizeRequest, messages: list[Message]) -> Submission:
    """The job that nobody submits."""
    return Submission(
        kind="job",
        sent=GenerationFields(model=body.model),
        prompt=None,
        messages=[message.as_template_variable() for message in messages],
        max_tokens=None,
        default_max_tokens=0,
        stream=False,
        idempotency_key=None,
        tools=body.tool_use,
        template_variables=body.chat_template_kwargs,
    )
