"""What an output that must be a call may be: whatever the grammar lets through is read as calls of the functions."""

import json
import random
from typing import Any

import jsonschema
import pytest
import tokenizers
from tokenizers import AddedToken

from tests.checkpoints import EOS_TOKEN_ID, tokenizer_json
from workers.text.call_grammar import call_grammar
from workers.text.grammar import Grammar, GrammarSpec, GrammarVocabulary, compile_grammar
from workers.text.parts import Arguments, CallBegun, CallEnded, Content, Part, merged
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import CallSpelling, ToolCallParser, special_markers
from workers.text.tool_styles import ToolStyle

FUNCTIONS: dict[str, dict[str, Any]] = {
    "level": {
        "type": "object",
        "properties": {"gauge": {"enum": ["Ulm", "Passau"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["gauge", "days"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
ANSWER = FUNCTIONS["level"] | {"properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
STYLES: list[ToolStyle] = ["hermes", "llama3", "mistral", "mistral_named"]


def make_tokenizer(*specials: str) -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    inner.add_special_tokens([AddedToken(special, special=True) for special in specials])
    return Tokenizer(inner)


PLAIN, MARKED = make_tokenizer(), make_tokenizer("[TOOL_CALLS]", "[ARGS]", "<tool_call>")


def compiled(style: ToolStyle, tokenizer: Tokenizer, **options: Any) -> Grammar:
    text = call_grammar(style, FUNCTIONS, specials=special_markers(tokenizer), **options)
    vocabulary = GrammarVocabulary(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids={EOS_TOKEN_ID})
    return compile_grammar(vocabulary, GrammarSpec("grammar", text))


def random_parts(grammar: Grammar, tokenizer: Tokenizer, style: ToolStyle, seed: int) -> list[Part]:
    """What is read in an output that is drawn from what may come; it is ended as soon as it may be."""
    choose, spelling = random.Random(seed), CallSpelling(style, frozenset(FUNCTIONS), special_markers(tokenizer))
    parser, parts = ToolCallParser(spelling), []
    for _ in range(500):
        bits = int.from_bytes(grammar.mask(), "little")
        allowed = [token_id for token_id in range(bits.bit_length()) if bits >> token_id & 1]
        if grammar.is_finished or EOS_TOKEN_ID in allowed:
            return merged([*parts, *parser.finish()])
        token_id = choose.choice(allowed)
        grammar.accept(token_id)
        text = "" if tokenizer.is_special(token_id) else tokenizer.decode([token_id])
        parts += parser.push(token_id, text)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("tokenizer", [PLAIN, MARKED], ids=["plain", "marked"])
@pytest.mark.parametrize("style", STYLES)
def test_an_output_that_is_held_to_a_call_is_read_as_one(style: ToolStyle, tokenizer: Tokenizer) -> None:
    grammar = compiled(style, tokenizer, is_parallel=False)
    names = set()
    for seed in range(12):
        begun, arguments, ended = random_parts(grammar.fork(), tokenizer, style, seed)
        assert isinstance(begun, CallBegun) and isinstance(arguments, Arguments) and ended == CallEnded(0)
        jsonschema.validate(json.loads(arguments.text), FUNCTIONS[begun.name])
        names.add(begun.name)
    assert names == set(FUNCTIONS)


@pytest.mark.parametrize("style", STYLES)
def test_beside_an_answer_either_is_written(style: ToolStyle) -> None:
    grammar = compiled(style, PLAIN, is_parallel=True, answer=ANSWER)
    kinds = set()
    for seed in range(30):
        first, *_ = random_parts(grammar.fork(), PLAIN, style, seed)
        kinds.add(type(first))
        if isinstance(first, Content):
            jsonschema.validate(json.loads(first.text), ANSWER)
    assert kinds == {Content, CallBegun}


@pytest.mark.parametrize("style", ["hermes", "mistral", "mistral_named"])
def test_several_calls_are_let_through_only_in_parallel(style: ToolStyle) -> None:
    call = '{"name": "now", "arguments": {}}'
    texts = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>",
        "mistral": f"[TOOL_CALLS][{call}, {call}]",
        "mistral_named": "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}",
    }
    token_ids = PLAIN.encode(texts[style], add_special_tokens=False)
    compiled(style, PLAIN, is_parallel=True).replay(token_ids)
    with pytest.raises(ValueError):
        compiled(style, PLAIN, is_parallel=False).replay(token_ids)
