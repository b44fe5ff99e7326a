"""The functions that a model may call, and whether it must, as clients send them."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from api.constraint_fields import Schema
from api.fields import ALLOWED, NAMED, ONE, RequestObject, Text, wrong_field
from api.tool_choice import ChosenTools, choice_branch
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

    def as_function(self) -> Function:
        """As all endpoints share it."""
        return Function(self.name, self.description, self.parameters)


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
        if self.tool_choice not in (None, "none") and not self.tools:
            raise wrong_field("tool_choice", "needs 'tools'")
        self._chosen.check(self._functions)
        return self

    @property
    def tool_use(self) -> ToolUse | None:
        """What they come to; None when nothing can be called."""
        if not self.tools or self.tool_choice == "none":
            return None
        return self._chosen.tool_use(self._functions, is_parallel=self.parallel_tool_calls)

    @property
    def _functions(self) -> list[Function]:
        return [tool.function.as_function() for tool in self.tools]

    @property
    def _chosen(self) -> ChosenTools:
        match self.tool_choice:
            case "required":
                return ChosenTools(is_forced=True)
            case NamedTool(function=function):
                return ChosenTools((function.name,), is_forced=True)
            case AllowedToolChoice(allowed_tools=allowed):
                names = tuple(tool.function.name for tool in allowed.tools)
                return ChosenTools(names, is_forced=allowed.mode == "required", hides_others=True)
        return ChosenTools()
