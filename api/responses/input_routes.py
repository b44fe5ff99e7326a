"""What a response was given, item by item, and how many tokens an input has."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.prompts import prompt_token_ids
from api.responses.messages import KIND, conversation_of, find_response
from api.responses.routes import ResponseId
from api.responses.schemas import DEFAULT_MAX_TOKENS, ResponseCreate
from api.schemas import error_replies
from api.services import ServicesDep
from api.submission import Submission
from api.submit import find_card

router = APIRouter(tags=["OpenAI"])


class InputItems(BaseModel):
    """A page of a response's input."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[dict[str, Any]] = Field(description="The items.")
    first_id: str | None = Field(description="Id of the first one.")
    last_id: str | None = Field(description="Id of the last one: the next page's `after`.")
    has_more: bool = Field(description="Whether there is a next page.")


class InputTokens(BaseModel):
    """How long an input is."""

    object: Literal["response.input_tokens"] = Field("response.input_tokens", description="Always this.")
    input_tokens: int = Field(description="Tokens of the prompt that it makes.", examples=[12])


@router.get(
    "/v1/responses/{response_id}/input_items",
    summary="List a response's input",
    response_description="The page.",
    responses=error_replies(400, 401, 404, 503),
)
async def list_input_items(
    services: ServicesDep,
    caller: CallerDep,
    response_id: ResponseId,
    after: Annotated[str | None, Query(max_length=128, description="Id of the last item of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Most items in the page.")] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc`: the last item first.")] = "desc",
) -> InputItems:
    """The items that were sent with it, without those of the responses before."""
    row = await find_response(services, caller.tenant, response_id)
    assert row.input.request is not None
    items = row.input.request["input"]
    if order == "desc":
        items = items[::-1]
    start = next((i + 1 for i, item in enumerate(items) if item["id"] == after), 0)
    page = items[start : start + limit]
    return InputItems(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > start + limit,
    )


@router.post(
    "/v1/responses/input_tokens",
    summary="Count a response's input",
    response_description="The number of tokens.",
    responses=error_replies(400, 401, 404, 408, 413, 503),
)
async def count_input_tokens(
    services: ServicesDep, caller: CallerDep, body: Annotated[ResponseCreate, Body()]
) -> InputTokens:
    """What a response with this body would count as input, its chain included. Nothing is submitted."""
    conversation = await conversation_of(services, caller.tenant, body)
    submission = Submission(
        kind=KIND,
        sent=body,
        prompt=None,
        messages=conversation.messages,
        max_tokens=body.max_output_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=False,
        idempotency_key=None,
        tools=body.tool_use,
        template_variables=body.chat_template_kwargs,
    )
    card = await find_card(services, body.model)
    return InputTokens(input_tokens=len(await prompt_token_ids(services, card, submission)))
