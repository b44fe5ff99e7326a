"""The items that a response is given: messages, the model's earlier calls of functions, and what these answered."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from api.fields import MAX_ITEMS, ONE, SEVERAL, MetadataKey, MetadataValue, RequestObject, Text

MAX_INPUT_ITEMS = 4096
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


class InputText(RequestObject):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text"] = Field(description="Only text is understood.")
    text: Text = Field(description="The text.")
    annotations: list[Any] = Field(default_factory=list, max_length=1024, description="Understood, and ignored.")
    logprobs: list[Any] | None = Field(None, max_length=MAX_ITEMS, description="Understood, and ignored.")


def _content_branch(value: Any) -> str | None:
    return ONE if isinstance(value, str) else SEVERAL if isinstance(value, list) else None


Content = Annotated[
    Annotated[Text, Tag(ONE)]
    | Annotated[list[InputText], Field(fail_fast=True, max_length=MAX_INPUT_ITEMS), Tag(SEVERAL)],
    Discriminator(_content_branch, "wrong_type", "must be a text or a list of text parts"),
]


class InputMessage(RequestObject):
    """One turn of a conversation."""

    type: Literal["message"] = Field("message", description="Always `message`.")
    role: Literal["user", "assistant", "system", "developer"] = Field(description="Who speaks.")
    content: Content = Field(description="What is said.")
    id: MetadataValue | None = Field(None, description="Of an output that is sent back.")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(None, description="As above.")
    phase: MetadataValue | None = Field(None, description="Understood, and ignored.")


class FunctionCall(RequestObject):
    """A call that the model made before."""

    type: Literal["function_call"] = Field(description="Always `function_call`.")
    call_id: MetadataKey = Field(description="What its answer names.")
    name: MetadataKey = Field(description="The function.")
    arguments: Text = Field(description="Its arguments, as JSON.")
    id: MetadataValue | None = Field(None, description="Of an output that is sent back.")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(None, description="As above.")


class FunctionCallOutput(RequestObject):
    """What a call answered."""

    type: Literal["function_call_output"] = Field(description="Always `function_call_output`.")
    call_id: MetadataKey = Field(description="Which call.")
    output: Content = Field(description="The answer.")
    id: MetadataValue | None = Field(None, description="Understood, and ignored.")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(None, description="As above.")


KINDS = ("message", "function_call", "function_call_output")


def _item_branch(value: Any) -> str | None:
    kind = (value.get("type") or "message") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in KINDS else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")],
    Discriminator(
        _item_branch, "wrong_type", "must be a 'message', 'function_call' or 'function_call_output'; others are unknown"
    ),
]
Input = Annotated[
    Annotated[Text, Tag(ONE)]
    | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_INPUT_ITEMS), Tag(SEVERAL)],
    Discriminator(_content_branch, "wrong_type", "must be a text or a list of items"),
]


def text_of(content: str | list[InputText]) -> str:
    """The text, however it was sent."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
