"""From a response's input to the messages that a chat template reads, and to the items that clients read back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from api.errors import invalid, not_found
from api.message_fields import CalledFunction
from api.responses.input import FunctionCall, FunctionCallOutput, InputItem, InputMessage, text_of
from api.responses.reading import output_items, reading_of
from api.responses.schemas import ResponseCreate
from api.services import Services
from db import job_queries
from db.ids import new_id, parse_id, public_id
from db.job_queries import JobRow
from db.models import ENDED

PREFIX = "resp_"
KIND = "response"  # of the job behind it
Message = dict[str, Any]
Item = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """What the model is to read, and which of it is this response's own input."""

    messages: list[Message]
    items: list[Item]


async def conversation_of(services: Services, tenant: str, body: ResponseCreate) -> Conversation:
    """The instructions, what the chain of responses before said, and the input. Raises ApiError."""
    sent = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    before = [] if body.previous_response_id is None else await _before(services, tenant, body.previous_response_id)
    instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    messages = [*instructions, *before, *messages_of(sent)]
    return Conversation(messages, [_stored(item) for item in sent])


def messages_of(items: Iterable[InputItem]) -> list[Message]:
    """The items as templates expect them: calls of functions that follow each other are one message."""
    messages: list[Message] = []
    for item in items:
        if isinstance(item, InputMessage):
            messages.append({"role": item.role, "content": text_of(item.content)})
        elif isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
        else:
            _add_call(messages, item.call_id, item.name, item.arguments)
    return messages


def _add_call(messages: list[Message], call_id: str, name: str, arguments: str) -> None:
    function = CalledFunction(name=name, arguments=arguments).as_template_variable()
    call = {"id": call_id, "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


async def _before(services: Services, tenant: str, response_id: str) -> list[Message]:
    """What was said up to the end of an earlier response, without its instructions."""
    row = await find_response(services, tenant, response_id)
    if row.job.status not in ENDED:
        message = f"The response '{response_id}' is still {row.job.status}; wait for its end, or cancel it."
        raise invalid(message, param="previous_response_id", code="previous_response_not_ended")
    assert row.input.request is not None and row.input.messages is not None
    has_instructions = row.input.request["instructions"] is not None
    messages = [dict(message) for message in row.input.messages[int(has_instructions) :]]
    for item in output_items(row, await reading_of(services, row)):
        if item["type"] == "message":
            messages.append({"role": "assistant", "content": "".join(part["text"] for part in item["content"])})
        else:
            _add_call(messages, item["call_id"], item["name"], item["arguments"])
    return messages


async def find_response(services: Services, tenant: str, response_id: str) -> JobRow:
    """The tenant's response behind a public id, or the 404: also for one that was not to be kept."""
    job_id = parse_id(PREFIX, response_id)
    row = None
    if job_id is not None:
        async with services.autocommit() as session:
            row = await job_queries.get(session, tenant, job_id)
    if row is None or row.job.kind != KIND or not (row.input.request or {}).get("store"):
        raise not_found("response", response_id)
    return row


def _stored(item: InputItem) -> Item:
    """The item as it is read back, with an id."""
    if isinstance(item, InputMessage):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content: list[Item] = [{"type": kind, "text": text_of(item.content)}]
        if kind == "output_text":
            content[0] |= {"annotations": [], "logprobs": []}
        said: Item = {"type": "message", "role": item.role, "status": "completed", "content": content}
        return {"id": item.id or public_id("msg_", new_id())} | said
    status = {"status": "completed"}
    if isinstance(item, FunctionCall):
        said = {"type": item.type, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        return {"id": item.id or public_id("fc_", new_id())} | said | status
    said = {"type": item.type, "call_id": item.call_id, "output": text_of(item.output)}
    return {"id": item.id or public_id("fco_", new_id())} | said | status
