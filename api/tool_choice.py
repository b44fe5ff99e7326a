"""Which of a request's functions may be called, and whether one must, however it was spelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.fields import ALLOWED, NAMED, ONE, wrong_field
from api.tool_use import Function, ToolUse


@dataclass(frozen=True)
class ChosenTools:
    """What `tool_choice` comes to."""

    names: tuple[str, ...] = ()  # of those that may be called; none: all of them
    is_forced: bool = False  # whether one of them must be
    hides_others: bool = False  # whether the prompt shows no others

    def check(self, functions: Sequence[Function]) -> None:
        """Refuse functions of one name, and names of none of them."""
        known = {function.name for function in functions}
        if len(known) != len(functions):
            raise wrong_field("tools", "two of them have the same name")
        for name in self.names:
            if name not in known:
                raise wrong_field("tool_choice", f"names '{name}', which is none of the 'tools'")

    def tool_use(self, functions: Sequence[Function], *, is_parallel: bool) -> ToolUse:
        """What may be called of the functions; `is_parallel`: several at once."""
        names = frozenset(self.names or (function.name for function in functions))
        shown = [function for function in functions if not self.hides_others or function.name in names]
        return ToolUse(tuple(shown), names, is_forced=self.is_forced, is_parallel=is_parallel)


def choice_branch(value: Any) -> str | None:
    """How a choice of tools is spelled: a word, one tool, or some of them."""
    if not isinstance(value, dict):
        return ONE if isinstance(value, str) else None
    return ALLOWED if value.get("type") == "allowed_tools" else NAMED
