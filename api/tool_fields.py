"""The functions that a model may call, and whether it must, as clients send them."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from api.constraint_fields import Schema
from api.fields import ALLOWED, NAMED, ONE, RequestObject, Text, wrong_field
from api.tool_use import Function, ToolUse

MAX_TOOLS = 128
MAX_DESCRIPTION = 16 * 1024  # characters

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionTool(RequestObject):
    """A function that the client can run."""

    name: FunctionName = Field(description="Letters, digits, `_` and `-`.", examples=["get_weather"])
    description: Annotated[Text, StringConstraints(max_length=MAX_DESCRIPTION)] | None = Field(
        None, description="What it does, for the model."
    )
    parameters: Schema | None = Field(None, description="A JSON Schema of its arguments. Default: it has none.")
    strict: bool | None = Field(
        None,
        description="A call that `tool_choice` asks for follows `parameters` to the letter, with or without this. "
        "Where the choice is the model's, so are the arguments.",
    )


class Tool(RequestObject):
    """Something that the model may call."""

    type: Literal["function"] = Field(description="Only functions are understood.")
    function: FunctionTool = Field(description="The function.")


class FunctionRef(RequestObject):
    """A function by its name."""

    name: FunctionName = Field(description="One of the tools.")


class NamedTool(RequestObject):
    """One of the tools."""

    type: Literal["function"] = Field(description="Only functions are understood.")
    function: FunctionRef = Field(description="Which one.")


class AllowedTools(RequestObject):
    """A part of the tools."""

    mode: Literal["auto", "required"] = Field(description="Whether one of them must be called.")
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)] = Field(
        description="The tools that may be called."
    )


class AllowedToolChoice(RequestObject):
    """Only some of the tools."""

    type: Literal["allowed_tools"] = Field(description="Always `allowed_tools`.")
    allowed_tools: AllowedTools = Field(description="Which, and whether one must be called.")


def choice_branch(value: Any) -> str | None:
    """How a choice of tools is spelled: a word, one tool, or some of them."""
    if not isinstance(value, dict):
        return ONE if isinstance(value, str) else None
    return ALLOWED if value.get("type") == "allowed_tools" else NAMED


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(ONE)]
    | Annotated[NamedTool, Tag(NAMED)]
    | Annotated[AllowedToolChoice, Tag(ALLOWED)],
    Discriminator(choice_branch, "wrong_type", "must be 'none', 'auto', 'required' or an object that names tools"),
]


class ToolFields(RequestObject):
    """What may be called, and what must."""

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        default_factory=list,
        description="Functions that the model may call, where its chat template has tools. You run them and send what "
        "they return as messages of the role `tool`.",
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="`auto` (the default): the model decides; `none`: no call; `required`: one call at least; or an "
        "object that names the one to call, or those that may be. What must be called is, whatever the model is.",
        examples=["auto", {"type": "function", "function": {"name": "get_weather"}}],
    )
    parallel_tool_calls: bool = Field(True, description="Whether several may be called at once.")

    @model_validator(mode="after")
    def _names_are_tools(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise wrong_field("tools", "two of them have the same name")
        if self.tool_choice not in (None, "none") and not names:
            raise wrong_field("tool_choice", "needs 'tools'")
        for name in self._chosen():
            if name not in names:
                raise wrong_field("tool_choice", f"names '{name}', which is none of the 'tools'")
        return self

    @property
    def tool_use(self) -> ToolUse | None:
        """What they come to; None when nothing can be called."""
        choice = self.tool_choice
        if not self.tools or choice == "none":
            return None
        chosen = set(self._chosen())
        is_forced = choice == "required" or isinstance(choice, NamedTool)
        if isinstance(choice, AllowedToolChoice):
            is_forced = choice.allowed_tools.mode == "required"
        functions = [_function(tool.function) for tool in self.tools]
        names = frozenset(chosen or (function.name for function in functions))
        if isinstance(choice, AllowedToolChoice):
            functions = [function for function in functions if function.name in names]
        return ToolUse(tuple(functions), names, is_forced=is_forced, is_parallel=self.parallel_tool_calls)

    def _chosen(self) -> Iterable[str]:
        match self.tool_choice:
            case NamedTool(function=function):
                return [function.name]
            case AllowedToolChoice(allowed_tools=allowed):
                return [tool.function.name for tool in allowed.tools]
        return []


def _function(tool: FunctionTool) -> Function:
    return Function(tool.name, tool.description, tool.parameters)
