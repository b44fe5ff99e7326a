"""What an output must follow that has to be a function call, in the model's own spelling, as a grammar in Lark's."""

import json
from collections.abc import Mapping
from typing import Any

from workers.text.json_value import BETWEEN_PARTS
from workers.text.tool_styles import ARGUMENTS, BEGIN, CALLS, END, ToolStyle

Schema = Mapping[str, Any]


def call_grammar(
    style: ToolStyle,
    functions: Mapping[str, Schema],
    *,
    specials: Mapping[int, str],
    is_parallel: bool,
    answer: Schema | None = None,
) -> str:
    """One call of one of `functions`, which are JSON Schemas of arguments by name; several if `is_parallel`.

    `specials` are the markers that are special tokens, by id. With an `answer`, JSON of that schema is as good.
    """
    spelling = _Spelling(style, {marker: token_id for token_id, marker in specials.items()})
    calls = spelling.calls(is_parallel=is_parallel)
    rules = [f"start: {'calls' if answer is None else 'calls | answer'}", f"calls: {calls}"]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(functions))))
    for i, (name, schema) in enumerate(functions.items()):
        rules += [f"call_{i}: {spelling.call(name, f'arguments_{i}')}", f"arguments_{i}: {_json(schema)}"]
    if answer is not None:
        rules.append(f"answer: {_json(answer)}")
    return "\n".join(rules)


class _Spelling:
    """The right sides of rules, in one style."""

    def __init__(self, style: ToolStyle, token_ids: Mapping[str, int]) -> None:
        self._style = style
        self._token_ids = token_ids

    def calls(self, *, is_parallel: bool) -> str:
        """One call, or several."""
        match self._style:
            case "hermes":
                call = f'{self._marker(BEGIN)} "\\n" call "\\n" {self._marker(END)}'
                return _several(call, f'"\\n" {call}', is_parallel)
            case "mistral":
                listed = _several("call", '", " call', is_parallel)
                return f'{self._marker(CALLS)} "[" {listed} "]"'
            case "mistral_named":
                call = f"{self._marker(CALLS)} call"
                return _several(call, call, is_parallel)
            case "llama3":
                return "call"

    def call(self, name: str, arguments: str) -> str:
        """A call of one function, whose arguments have a rule of their own."""
        if self._style == "mistral_named":
            return f"{json.dumps(name)} {self._marker(ARGUMENTS)} {arguments}"
        key = "parameters" if self._style == "llama3" else "arguments"
        head = f'{{"name": {json.dumps(name)}, "{key}": '
        return f'{json.dumps(head)} {arguments} "}}"'

    def _marker(self, marker: str) -> str:
        token_id = self._token_ids.get(marker)
        return json.dumps(marker) if token_id is None else f"<[{token_id}]>"


def _several(first: str, next_one: str, is_parallel: bool) -> str:
    return f"{first} ({next_one})*" if is_parallel else first


def _json(schema: Schema) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": BETWEEN_PARTS}})
