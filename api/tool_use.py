"""The functions of one job: what its prompt shows, what its output must follow, how its calls are read.

It knows nothing of how a client spells them, so that all of OpenAI's endpoints share it.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from api.errors import ApiError, invalid
from api.fields import MAX_STRUCTURE_CHARACTERS
from db.models import Worker
from db.sampling import StructuredOutput
from workers.text.call_grammar import call_grammar
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import CallSpelling, special_markers
from workers.text.tool_styles import KNOWN, ToolStyle, tool_style

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
MISTRAL_ID_CHARACTERS = 9  # its templates refuse any other length
MAX_GRAMMAR_CHARACTERS = 4 * MAX_STRUCTURE_CHARACTERS


@dataclass(frozen=True)
class Function:
    """A function that a client can run; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None

    @property
    def schema(self) -> dict[str, Any]:
        """The parameters; without them there are none."""
        return NO_PARAMETERS if self.parameters is None else self.parameters

    def as_template_variable(self) -> dict[str, Any]:
        """As chat templates expect a tool."""
        described = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.schema}}


@dataclass(frozen=True)
class ToolUse:
    """What may be called, and whether something must."""

    functions: tuple[Function, ...]  # that the prompt shows
    names: frozenset[str]  # of those that may be called
    is_forced: bool
    is_parallel: bool  # whether there may be several calls

    def spelling(self, card: Worker, tokenizer: Tokenizer) -> CallSpelling:
        """How the model's calls are read."""
        most_calls = None if self.is_parallel else 1
        return CallSpelling(style_of(card), self.names, special_markers(tokenizer), most_calls)

    def structure(self, card: Worker, tokenizer: Tokenizer, answer: StructuredOutput | None) -> StructuredOutput | None:
        """What the output must follow, if it must be a call, or either that or what `answer` says. Raises ApiError."""
        if answer is not None and answer.kind != "json_schema":
            message = f"'structured_output' has '{answer.kind}'; beside 'tools' it takes 'json_schema' only."
            raise invalid(message, param="structured_output")
        if not self.is_forced and answer is None:
            return None
        text = call_grammar(
            style_of(card),
            {function.name: function.schema for function in self.functions if function.name in self.names},
            specials=special_markers(tokenizer),
            is_parallel=self.is_parallel,
            answer=None if self.is_forced or answer is None else json.loads(answer.text),
        )
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise _too_long(len(text))
        return StructuredOutput(kind="grammar", text=text)


def style_of(card: Worker) -> ToolStyle:
    """How the model spells calls. A 400 where its chat template does not tell."""
    style = None if card.chat_template is None else tool_style(card.chat_template)
    if style is None:
        raise invalid(
            f"The chat template of '{card.model}' teaches no calls of tools in a spelling known here ({KNOWN}). "
            "Leave out 'tools', or ask for JSON with 'response_format'.",
            param="tools",
            code="tools_not_supported",
        )
    return style


def _too_long(num_characters: int) -> ApiError:
    return invalid(
        f"What the tools allow has {num_characters:,} characters as a grammar; at most {MAX_GRAMMAR_CHARACTERS:,} are "
        "taken. Send fewer tools, or simpler parameters.",
        param="tools",
    )


def call_id(style: ToolStyle, job_id: UUID, choice: int, index: int) -> str:
    """The id of a call: of what is told again, the same again."""
    digest = hashlib.sha256(f"{job_id}/{choice}/{index}".encode()).hexdigest()
    return digest[:MISTRAL_ID_CHARACTERS] if style.startswith("mistral") else f"call_{digest[:24]}"
