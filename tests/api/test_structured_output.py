"""What an output must follow is compiled before a job is accepted, where nothing that a client sends can do harm."""

import asyncio
from typing import Any

import pytest

from api import grammars
from api.grammars import TOO_COMPLEX, TOO_SLOW, GrammarChecks
from db.sampling import StructuredOutput
from tests.api.hand_worker import make_card

BODY: dict[str, Any] = {"model": "tiny", "prompt": [5, 6], "max_tokens": 8}
ENDLESS = StructuredOutput(kind="json_schema", text='{"type": "integer", "multipleOf": 99999989}')
DEEP = StructuredOutput(
    kind="grammar", text="start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(4000)) + '\na4000: "x"'
)
GOOD = StructuredOutput(kind="regex", text="[ab]+")


@pytest.fixture
async def checks(tokenizer_path: str):
    checks = GrammarChecks()
    yield checks
    await checks.close()


@pytest.fixture
def card(tokenizer_path: str):
    return make_card(tokenizer_path)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"json_schema": {"type": "objec"}}, "json_schema", "Invalid type: objec"),
    ({"json_schema": {"$ref": "file:///etc/passwd"}}, "json_schema", "not present in a registry"),
    ({"regex": "(a"}, "regex", "unclosed group"),
    ({"grammar": "start: b"}, "grammar", 'unknown name: "b"'),
]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/completions"])
async def test_what_cannot_be_compiled_is_a_400_that_says_why(client, worker, path: str) -> None:
    for value, kind, words in WRONG:
        reply = await client.post(path, json=BODY | {"structured_output": value})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, f"structured_output.{kind}"), error
        assert words in error["message"]
    assert (await client.get("/v1/jobs")).json()["data"] == []


async def test_a_schema_that_is_no_json_or_nested_too_deeply_is_a_400(client, worker) -> None:
    for schema in ('{"const": NaN}', '{"const": "\\ud800"}', '{"maximum": 1e999}', '{"a":' * 150 + "1" + "}" * 150):
        content = f'{{"model": "tiny", "prompt": [5], "structured_output": {{"json_schema": {schema}}}}}'
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        reply = await client.post("/v1/jobs", content=content, headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "structured_output.json_schema")


async def test_a_schema_nested_as_deep_as_is_taken_makes_a_job(client, worker) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(48):
        schema = {"type": "array", "items": schema}
    headers = {"Idempotency-Key": "k"}
    for _ in range(2):
        reply = await client.post(
            "/v1/jobs", json=BODY | {"structured_output": {"json_schema": schema}}, headers=headers
        )
        assert reply.status_code == 202, reply.text


async def test_a_grammar_that_would_compile_for_ever_or_crash_is_refused_and_the_next_one_compiled(
    checks, card
) -> None:
    assert await checks.reason(card, ENDLESS) == TOO_SLOW
    process = checks._process
    assert await checks.reason(card, DEEP) == TOO_COMPLEX
    assert await checks.reason(card, GOOD) is None
    assert checks._process is process and process.poll() is None, "it has the tokenizer, which takes seconds to read"


async def test_a_process_that_was_killed_is_started_again(checks, card) -> None:
    assert await checks.reason(card, GOOD) is None
    checks._process.kill()
    other = StructuredOutput(kind="regex", text="(b")
    with pytest.raises(grammars.CheckFailed):
        await checks.reason(card, other)
    assert "unclosed group" in str(await checks.reason(card, other))


async def test_a_grammar_is_compiled_once(checks, card, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = checks._ask
    monkeypatch.setattr(checks, "_ask", lambda request: asked.append(request) or ask(request))
    bad = StructuredOutput(kind="regex", text="(a")
    answers = await asyncio.gather(*(checks.reason(card, each) for each in [GOOD, bad] * 5))
    assert answers == [None, answers[1]] * 5 and "unclosed group" in str(answers[1])
    assert len(asked) == 2


async def test_the_event_loop_goes_on_while_a_grammar_is_compiled(checks, card) -> None:
    checking = asyncio.create_task(checks.reason(card, ENDLESS))
    num_turns = 0
    while not checking.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert checking.result() == TOO_SLOW
    assert num_turns > 100


async def test_a_request_that_is_cut_off_leaves_the_next_its_own_answer(checks, card) -> None:
    assert await checks.reason(card, GOOD) is None
    bad = StructuredOutput(kind="regex", text="(b")
    leaving = asyncio.create_task(checks.reason(card, bad))
    await asyncio.sleep(0)
    leaving.cancel()
    others = [StructuredOutput(kind="regex", text=f"a{{{i}}}") for i in range(1, 5)]
    assert [await checks.reason(card, each) for each in others] == [None] * 4
    assert "unclosed group" in str(await checks.reason(card, bad))


async def test_the_process_ends_with_its_owner(checks, card) -> None:
    assert await checks.reason(card, GOOD) is None
    process = checks._process
    assert process is not None and process.poll() is None
    await checks.close()
    assert process.poll() == 0


async def test_an_output_that_may_or_must_be_empty_is_taken(checks, card) -> None:
    for kind, text in [("regex", ""), ("regex", "a*"), ("choice", '["", "a"]'), ("choice", '[""]')]:
        assert await checks.reason(card, StructuredOutput(kind=kind, text=text)) is None


async def test_a_tokenizer_that_cannot_be_read_is_not_taken_for_a_wrong_grammar(checks, tmp_path) -> None:
    with pytest.raises(grammars.CheckFailed):
        await checks.reason(make_card(str(tmp_path / "nowhere.json")), GOOD)
