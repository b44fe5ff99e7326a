"""Chat messages to a prompt, with the model's own Jinja2 template, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_PROMPT_CHARACTERS = 16 * 1024 * 1024

# For models without a template of their own: a plain transcript, which a base model continues.
TRANSCRIPT = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


class ChatTemplateError(ValueError):
    """The template cannot be read, or it refuses these messages; the text is the template's own where it has one."""


class ChatTemplate:
    """A compiled template. Immutable, so threads may share one."""

    def __init__(self, source: str, bos_token: str | None, eos_token: str | None) -> None:
        """Compile `source`. Raises ChatTemplateError when it is not valid Jinja2."""
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid Jinja2: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`, up to where the assistant's next message begins.

        `tools` are as OpenAI spells them; `variables` are others that this template knows.

        Raises ChatTemplateError when the template refuses them, fails, or writes more than MAX_PROMPT_CHARACTERS.
        """
        given = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
        }
        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in self._template.generate({**(variables or {}), **given, **self._tokens}):
                num_characters += len(piece)
                if num_characters > MAX_PROMPT_CHARACTERS:
                    raise ChatTemplateError(f"the rendered prompt is over {MAX_PROMPT_CHARACTERS:,} characters")
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except Exception as error:  # a template is a program that came with the model: it may raise anything
            raise ChatTemplateError(f"the chat template failed on these messages: {error}") from error
        return "".join(pieces)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As JSON for a model: Jinja2's own filter escapes `<`, `>` and `&` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _make_environment() -> ImmutableSandboxedEnvironment:
    """What templates on the Hugging Face hub are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


_ENVIRONMENT = _make_environment()
