"""The messages of a conversation, as clients send them."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from api.constraint_fields import check_json
from api.fields import Content, MetadataKey, RequestObject, Text

MAX_MESSAGES = 4096
MAX_CALLS = 128  # in one message
MAX_CALL_ID = 256  # characters
MAX_FUNCTION_NAME = 256  # of a call in the past; those of today's tools are shorter
MAX_VARIABLES = 32  # of a chat template, beside the usual ones

CallId = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_CALL_ID)]
Annotations = Annotated[list[Any], Field(max_length=MAX_CALLS)]


class CalledFunction(RequestObject):
    """What a past message of the assistant called."""

    name: Annotated[Text, StringConstraints(min_length=1, max_length=MAX_FUNCTION_NAME)] = Field(
        description="The function's name."
    )
    arguments: Text = Field("", description="Its arguments as JSON.")

    def as_template_variable(self) -> dict[str, Any]:
        """As chat templates expect it: the arguments are an object, unless the model wrote something else."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        return {"name": self.name, "arguments": arguments if isinstance(arguments, dict) else self.arguments}


class ToolCall(RequestObject):
    """A call in a past message of the assistant."""

    id: CallId = Field(description="Names the call: the tool's message says it.")
    type: Literal["function"] = Field("function", description="Only functions are called.")
    function: CalledFunction = Field(description="What was called.")


class Message(RequestObject):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="Who speaks.")
    content: Content | None = Field(
        None, description="What is said: a text, or text parts that are joined. May be left out beside `tool_calls`."
    )
    name: MetadataKey | None = Field(None, description="Who speaks, where the model's template shows names.")
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None = Field(
        None, description="What the assistant called in this turn."
    )
    tool_call_id: CallId | None = Field(None, description="Of a tool's message: the call that it answers.")
    refusal: Text | None = Field(None, description="As the assistant's message had it; stands for a missing content.")
    annotations: Annotations | None = Field(None, description="Understood, and ignored.")
    audio: None = Field(None, description="Only null.")
    function_call: None = Field(None, description="Only null; send `tool_calls`.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise ValueError("needs 'content'")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"has 'tool_calls' and the role '{self.role}'; only the assistant calls tools")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("needs 'tool_call_id': the id of the call that it answers")
        return self

    @property
    def text(self) -> str:
        """All that is said."""
        if self.content is None:
            return self.refusal or ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def as_template_variable(self) -> dict[str, Any]:
        """The message as chat templates expect it: `content` is one text, and what is missing is left out."""
        variable: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.name is not None:
            variable["name"] = self.name
        if self.tool_calls:
            variable["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.as_template_variable()}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            variable["tool_call_id"] = self.tool_call_id
        return variable


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
JsonObject = Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES), AfterValidator(check_json)]


class TemplateFields(RequestObject):
    """What a chat template is given beside messages and tools."""

    chat_template_kwargs: JsonObject = Field(
        default_factory=dict,
        description="Variables of the model's chat template.",
        examples=[{"enable_thinking": False}],
    )
