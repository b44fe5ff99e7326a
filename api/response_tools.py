"""The functions that a response may call, as OpenAI's responses spell them."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from api.fields import ALLOWED, NAMED, ONE, RequestObject, wrong_field
from api.tool_fields import MAX_TOOLS, FunctionName, FunctionTool, choice_branch
from api.tool_use import Function, ToolUse


class ResponseTool(FunctionTool):
    """A function that the client can run."""

    type: Literal["function"] = Field(description="Only functions are understood.")


class NamedFunction(RequestObject):
    """One of the tools."""

    type: Literal["function"] = Field(description="Only functions are understood.")
    name: FunctionName = Field(description="Which one.")


class AllowedFunctions(RequestObject):
    """Only some of the tools."""

    type: Literal["allowed_tools"] = Field(description="Always `allowed_tools`.")
    mode: Literal["auto", "required"] = Field(description="Whether one of them must be called.")
    tools: Annotated[list[NamedFunction], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)] = Field(
        description="The tools that may be called."
    )


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(ONE)]
    | Annotated[NamedFunction, Tag(NAMED)]
    | Annotated[AllowedFunctions, Tag(ALLOWED)],
    Discriminator(choice_branch, "wrong_type", "must be 'none', 'auto', 'required' or an object that names tools"),
]


class ResponseToolFields(RequestObject):
    """What may be called, and what must."""

    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        default_factory=list,
        description="Functions that the model may call, where its chat template has tools. You run them and send what "
        "they return as items of the type `function_call_output`.",
    )
    tool_choice: ResponseToolChoice | None = Field(
        None,
        description="`auto` (the default): the model decides; `none`: no call; `required`: one call at least; or an "
        "object that names the one to call, or those that may be. What must be called is, whatever the model is.",
    )
    parallel_tool_calls: bool = Field(True, description="Whether several may be called at once.")
    max_tool_calls: int | None = Field(None, ge=1, description="Understood, and ignored: it is for OpenAI's own tools.")

    @model_validator(mode="after")
    def _names_are_tools(self) -> Self:
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise wrong_field("tools", "two of them have the same name")
        if self.tool_choice not in (None, "none", "auto") and not names:
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
        is_forced = choice == "required" or isinstance(choice, NamedFunction)
        functions = [Function(tool.name, tool.description, tool.parameters) for tool in self.tools]
        names = frozenset(list(self._chosen()) or [function.name for function in functions])
        if isinstance(choice, AllowedFunctions):
            is_forced = choice.mode == "required"
            functions = [function for function in functions if function.name in names]
        return ToolUse(tuple(functions), names, is_forced=is_forced, is_parallel=self.parallel_tool_calls)

    def tools_answered(self) -> dict[str, Any]:
        """What the response repeats of them."""
        choice = self.tool_choice or "auto"
        return {
            "tools": [tool.model_dump(mode="json") for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(mode="json"),
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    def _chosen(self) -> Iterable[str]:
        match self.tool_choice:
            case NamedFunction(name=name):
                return [name]
            case AllowedFunctions(tools=tools):
                return [tool.name for tool in tools]
        return []
