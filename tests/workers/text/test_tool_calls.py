"""Function calls in what models write, however the text is cut into tokens."""

import random
from collections.abc import Iterable

import pytest

from tests import chat_templates
from workers.text.parts import Arguments, CallBegun, CallEnded, Content, Part, merged
from workers.text.tool_calls import CallSpelling, ToolCallParser
from workers.text.tool_styles import ToolStyle, tool_style

NAMES = frozenset({"get_weather", "now"})
ULM = '{"city": "Ulm", "note": "a \\"}\\" b"}'


def call(index: int, name: str, arguments: str) -> list[Part]:
    return [CallBegun(index, name), Arguments(index, arguments), CallEnded(index)]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def mistral(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


CASES: list[tuple[ToolStyle, str, list[Part]]] = [
    ("hermes", "Hello\n", [Content("Hello\n")]),
    ("hermes", hermes("now", "{}"), call(0, "now", "{}")),
    ("hermes", f"I look.\n{hermes('get_weather', ULM)}", [Content("I look."), *call(0, "get_weather", ULM)]),
    (
        "hermes",
        f"\n\n{hermes('get_weather', ULM)}\n{hermes('now', '{}')}\n",
        [*call(0, "get_weather", ULM), *call(1, "now", "{}")],
    ),
    ("hermes", '<tool_call>{"arguments": {"a": [1, 2]}, "name": "now"}', call(0, "now", '{"a": [1, 2]}')),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', call(0, "now", "{}")),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', call(0, "now", "{}")),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', call(0, "now", '{"a": 1}')),
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_', call(0, "now", "{}")),
    ("hermes", f"{hermes('now', '{}')} Done. ", [*call(0, "now", "{}"), Content("Done. ")]),
    ("hermes", "a <tool_cal> b < c", [Content("a <tool_cal> b < c")]),
    ("hermes", "<tool_call> none </tool_call>", [Content("<tool_call> none </tool_call>")]),
    ("hermes", '<tool_call>{"x": 1}', [Content('<tool_call>{"x": 1}')]),
    ("hermes", '<tool_call>\n{"na', [Content('<tool_call>\n{"na')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', [CallBegun(0, "now"), Arguments(0, '{"a": "b')]),
    ("llama3", llama("get_weather", ULM), call(0, "get_weather", ULM)),
    ("llama3", f" <|python_tag|>{llama('now', '{}')}\n", call(0, "now", "{}")),
    (
        "llama3",
        f"{llama('now', '{}')}; {llama('get_weather', ULM)}",
        [*call(0, "now", "{}"), *call(1, "get_weather", ULM)],
    ),
    ("llama3", '{"type": "function", "name": "now", "parameters": {}}', call(0, "now", "{}")),
    ("llama3", '{"name": "Ulm", "size": 3}', [Content('{"name": "Ulm", "size": 3}')]),
    ("llama3", llama("unknown", "{}"), [Content(llama("unknown", "{}"))]),
    ("llama3", "Hello {you}", [Content("Hello {you}")]),
    ("llama3", " ", [Content(" ")]),
    ("mistral", f"[TOOL_CALLS] [{mistral('get_weather', ULM)}]", call(0, "get_weather", ULM)),
    (
        "mistral",
        f"Now: [TOOL_CALLS][{mistral('now', '{}')}, {mistral('get_weather', ULM)}]",
        [Content("Now:"), *call(0, "now", "{}"), *call(1, "get_weather", ULM)],
    ),
    (
        "mistral_named",
        f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{ULM}",
        [*call(0, "now", "{}"), *call(1, "get_weather", ULM)],
    ),
    ("mistral", "[TOOL_CALLS] sorry", [Content("[TOOL_CALLS] sorry")]),
    ("mistral", "a [list] [TOOL", [Content("a [list] [TOOL")]),
]


def read(style: ToolStyle, pieces: Iterable[str]) -> list[Part]:
    parser = ToolCallParser(CallSpelling(style, NAMES, markers={}))
    parts = [part for piece in pieces for part in parser.push(5, piece)]
    return merged([*parts, *parser.finish()])


@pytest.mark.parametrize(("style", "text", "parts"), CASES)
def test_calls_and_content_are_told_apart_wherever_the_text_is_cut(
    style: ToolStyle, text: str, parts: list[Part]
) -> None:
    assert read(style, [text]) == parts
    assert read(style, text) == parts, "a character at a time"
    for place in range(1, len(text)):
        assert read(style, [text[:place], text[place:]]) == parts, (text[:place], text[place:])
    choose = random.Random(0)
    for _ in range(20):
        places = sorted({0, len(text), *(choose.randrange(len(text)) for _ in range(5))})
        assert read(style, [text[a:b] for a, b in zip(places, places[1:], strict=False)]) == parts


def test_arguments_are_told_as_they_come() -> None:
    parser = ToolCallParser(CallSpelling("hermes", NAMES, markers={}))
    told = [parser.push(5, piece) for piece in ('<tool_call>{"name": "now", "arg', 'uments": {"a', '": 1}', "}")]
    assert told == [[], [CallBegun(0, "now"), Arguments(0, '{"a')], [Arguments(0, '": 1}')], [CallEnded(0)]]


def test_text_that_begins_no_call_is_told_at_once() -> None:
    parser = ToolCallParser(CallSpelling("hermes", NAMES, markers={}))
    assert [parser.push(5, piece) for piece in ("a", " ", "b <", "c")] == [
        [Content("a")],
        [],
        [Content(" b")],
        [Content(" <c")],
    ]


def test_markers_that_are_special_tokens_count_though_they_have_no_text() -> None:
    parser = ToolCallParser(CallSpelling("mistral_named", NAMES, markers={3: "[TOOL_CALLS]", 4: "[ARGS]"}))
    tokens = [(3, ""), (50, "now"), (4, ""), (51, '{"a":'), (52, "1}"), (2, "")]
    parts = [part for token_id, text in tokens for part in parser.push(token_id, text)] + parser.finish()
    assert merged(parts) == call(0, "now", '{"a":1}')


def test_calls_beyond_the_most_are_dropped() -> None:
    parser = ToolCallParser(CallSpelling("hermes", NAMES, markers={}, most_calls=1))
    parts = parser.push(5, hermes("now", "{}") + hermes("get_weather", ULM) + "x") + parser.finish()
    assert (parts, parser.num_calls) == ([*call(0, "now", "{}"), Content("x")], 1)


def test_without_a_spelling_all_is_content() -> None:
    parser = ToolCallParser(None)
    assert parser.push(5, hermes("now", "{}")) == [Content(hermes("now", "{}"))]
    assert (parser.push(5, ""), parser.finish(), parser.num_calls) == ([], [], 0)


def test_a_template_tells_the_spelling() -> None:
    assert tool_style(chat_templates.QWEN) == "hermes"
    assert tool_style(chat_templates.LLAMA) == "llama3"
    assert tool_style(chat_templates.MISTRAL) == "mistral"
    assert tool_style(chat_templates.MISTRAL + "[ARGS]") == "mistral_named"
    assert tool_style("{{ messages[0].content }}") is None
    assert tool_style(chat_templates.QWEN + "<function=name><parameter=x>") is None, "Qwen's coder puts no JSON there"
