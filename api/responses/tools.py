"""The functions that a response may call, as OpenAI's responses spell them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from api.fields import ALLOWED, NAMED, ONE, RequestObject, wrong_field
from api.tool_choice import ChosenTools, choice_branch
from api.tool_fields import MAX_TOOLS, FunctionName, FunctionTool
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
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise wrong_field("tool_choice", "needs 'tools'")
        self._chosen.check(self._functions)
        return self

    @property
    def tool_use(self) -> ToolUse | None:
        """What they come to; None when nothing can be called."""
        if not self.tools or self.tool_choice == "none":
            return None
        return self._chosen.tool_use(self._functions, is_parallel=self.parallel_tool_calls)

    def tools_answered(self) -> dict[str, Any]:
        """What the response repeats of them."""
        choice = self.tool_choice or "auto"
        return {
            "tools": [tool.model_dump(mode="json") for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(mode="json"),
            "parallel_tool_calls": self.parallel_tool_calls,
        }

    @property
    def _functions(self) -> list[Function]:
        return [tool.as_function() for tool in self.tools]

    @property
    def _chosen(self) -> ChosenTools:
        match self.tool_choice:
            case "required":
                return ChosenTools(is_forced=True)
            case NamedFunction(name=name):
                return ChosenTools((name,), is_forced=True)
            case AllowedFunctions(tools=tools, mode=mode):
                return ChosenTools(tuple(tool.name for tool in tools), is_forced=mode == "required", hides_others=True)
        return ChosenTools()
