"""What the functions of a job come to, whoever sent them."""

from uuid import UUID

import pytest

from api.errors import ApiError
from api.tool_use import Function, ToolUse, call_id
from tests import chat_templates
from tests.api.hand_worker import make_card
from workers.text.tokenizer import Tokenizer


def test_tools_whose_grammar_would_be_too_long_are_refused_with_the_numbers(tokenizer_path: str) -> None:
    long = {"type": "object", "properties": {"a": {"description": "x" * 60_000}}}
    functions = tuple(Function(f"f{i}", None, long) for i in range(5))
    use = ToolUse(functions, frozenset(f"f{i}" for i in range(5)), is_forced=True, is_parallel=True)
    card = make_card(tokenizer_path, chat_template=chat_templates.QWEN)
    with pytest.raises(ApiError, match=r"has 30\d,\d{3} characters as a grammar; at most 262,144"):
        use.structure(card, Tokenizer.load(tokenizer_path), None)


def test_ids_of_calls_are_the_same_again_and_none_is_anothers() -> None:
    jobs = [UUID(int=1), UUID(int=2)]
    ids = [call_id("hermes", job, choice, index) for job in jobs for choice in (0, 1) for index in (0, 1)]
    assert ids == [call_id("hermes", job, choice, index) for job in jobs for choice in (0, 1) for index in (0, 1)]
    assert len(set(ids)) == 8
    assert call_id("mistral", jobs[0], 0, 0).isalnum() and len(call_id("mistral_named", jobs[0], 0, 0)) == 9
