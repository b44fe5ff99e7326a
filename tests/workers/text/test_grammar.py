"""What an output may be, token by token: whatever a grammar lets through is what it describes, and EOS ends it."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLTokenizer

from tests.checkpoints import EOS_TOKEN_ID, tokenizer_json
from tests.workers.text import small_tokenizers
from workers.text import grammar as grammar_module
from workers.text.grammar import Grammar, GrammarError, GrammarSpec, GrammarVocabulary, compile_grammar
from workers.text.tokenizer import Tokenizer

MODEL_VOCAB_SIZE = 560  # more than the tokenizer has
EOS = {EOS_TOKEN_ID, 2}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", None]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", "yes, but", 'a "quoted" word', "naïve 🌊", "line\nbreak", "\x7f\\d"]
SUM = 'start: term (" + " term)~1..3\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    return Tokenizer.load(path)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer, vocab_size=MODEL_VOCAB_SIZE, eos_token_ids=EOS)


def allowed(grammar: Grammar) -> list[int]:
    bits = int.from_bytes(grammar.mask(), "little")
    return [token_id for token_id in range(bits.bit_length()) if bits >> token_id & 1]


def random_output(grammar: Grammar, seed: int, most: int = 400) -> tuple[list[int], bool]:
    """Token ids drawn evenly from what may come, up to the end; whether it ended."""
    choose = random.Random(seed)
    token_ids: list[int] = []
    while not grammar.is_finished and len(token_ids) < most:
        token_id = choose.choice(allowed(grammar))
        grammar.accept(token_id)
        token_ids.append(token_id)
    return token_ids, grammar.is_finished


def is_of_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags"]
        and len(value["name"]) <= 8
        and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 2
        and all(tag in ("a", "bb", None) for tag in value["tags"])
    )


def is_a_sum(text: str) -> bool:
    """Whether nothing is left but one sum when numbers, and then sums in parentheses, are taken for terms."""
    text, num = re.sub("[0-9]{1,3}", "n", text), 1
    while num:
        text, num = re.subn(r"\(n( \+ n){1,3}\)", "n", text)
    return re.fullmatch(r"n( \+ n){1,3}", text) is not None


KINDS: dict[str, tuple[GrammarSpec, Callable[[str], bool]]] = {
    "json_schema": (GrammarSpec("json_schema", json.dumps(SCHEMA)), is_of_schema),
    "regex": (
        GrammarSpec("regex", "[A-Z][a-z]{0,9}(, [a-z]+){2}[.!]"),
        lambda text: re.fullmatch("[A-Z][a-z]{0,9}(, [a-z]+){2}[.!]", text) is not None,
    ),
    "choice": (GrammarSpec("choice", json.dumps(CHOICES)), lambda text: text in CHOICES),
    "grammar": (GrammarSpec("grammar", SUM), is_a_sum),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_is_what_the_grammar_describes(
    tokenizer: Tokenizer, vocabulary: GrammarVocabulary, kind: str
) -> None:
    spec, describes = KINDS[kind]
    compiled = compile_grammar(vocabulary, spec)
    num_ended = 0
    for seed in range(60):
        token_ids, has_ended = random_output(compiled.fork(), seed)
        assert max(token_ids) < tokenizer.vocab_size
        if has_ended:
            num_ended += 1
            assert describes(tokenizer.decode([each for each in token_ids if each not in EOS])), (seed, token_ids)
    assert num_ended > 10


def test_every_choice_can_be_written(tokenizer: Tokenizer, vocabulary: GrammarVocabulary) -> None:
    compiled = compile_grammar(vocabulary, KINDS["choice"][0])
    for choice in CHOICES:
        grammar = compiled.fork()
        grammar.replay(tokenizer.encode(choice, add_special_tokens=False))
        assert grammar.is_finished or EOS.issubset(allowed(grammar))


def test_an_end_of_sequence_token_may_come_where_the_output_is_complete_and_nowhere_else(
    tokenizer: Tokenizer, vocabulary: GrammarVocabulary
) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("regex", "ab(cd)?"))
    at_end = {}
    for character in ["", "a", "b", "c"]:
        grammar.replay(tokenizer.encode(character, add_special_tokens=False))
        at_end[character] = EOS & set(allowed(grammar))
    assert at_end == {"": set(), "a": set(), "b": EOS, "c": set()}
    assert not grammar.is_finished
    grammar.replay(tokenizer.encode("d"))
    assert grammar.is_finished


@pytest.mark.parametrize("eos_token_id", sorted(EOS))
def test_an_end_of_sequence_token_finishes_it(
    tokenizer: Tokenizer, vocabulary: GrammarVocabulary, eos_token_id: int
) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("regex", "a+"))
    grammar.replay(tokenizer.encode("a"))
    assert not grammar.is_finished
    grammar.accept(eos_token_id)
    assert grammar.is_finished


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_up_to_any_token_it_allows_what_it_allowed_there(vocabulary: GrammarVocabulary, kind: str) -> None:
    compiled = compile_grammar(vocabulary, KINDS[kind][0])
    grammar = compiled.fork()
    token_ids, _ = random_output(compiled.fork(), seed=3, most=40)
    for num in range(len(token_ids)):
        resumed = compiled.fork()
        resumed.replay(token_ids[:num])
        assert allowed(resumed) == allowed(grammar)
        grammar.accept(token_ids[num])


def test_forks_go_their_own_ways(tokenizer: Tokenizer, vocabulary: GrammarVocabulary) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("choice", '["ax", "by"]'))
    one, other = grammar.fork(), grammar.fork()
    one.replay(tokenizer.encode("a"))
    other.replay(tokenizer.encode("b"))
    assert (allowed(one), allowed(other)) == (tokenizer.encode("x"), tokenizer.encode("y"))
    assert set(tokenizer.encode("a") + tokenizer.encode("b")) <= set(allowed(grammar))


@pytest.mark.parametrize("token_id", [5, 511, MODEL_VOCAB_SIZE - 1, 2**31 - 1])
def test_a_token_that_may_not_come_is_an_error_and_leaves_the_others_as_they_were(
    vocabulary: GrammarVocabulary, token_id: int
) -> None:
    compiled = compile_grammar(vocabulary, GrammarSpec("regex", "[ab]+"))
    grammar = compiled.fork()
    with pytest.raises(GrammarError):
        grammar.accept(token_id)
    with pytest.raises(GrammarError):
        grammar.mask()
    assert allowed(compiled)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", '{"type": "objec"}', "Invalid type: objec"),
        ("json_schema", '{"type": "object"', "EOF while parsing"),
        ("json_schema", '{"$ref": "http://localhost:1/schema.json"}', "not present"),
        ("json_schema", '{"$ref": "#"}', "no text matches it"),
        ("json_schema", '{"type": "object", "dependentSchemas": {}}', "dependentSchemas"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("grammar", "start: a b", 'unknown name: "a"'),
        ("grammar", 'start: <|nope|> "x"', "unknown special token"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deeply nested"),
        ("grammar", 'start: "a\0"', "lexer error"),
        ("choice", "[5", "delimiter"),
    ],
)
def test_what_does_not_compile_is_refused_with_the_reason_in_one_short_line(
    vocabulary: GrammarVocabulary, kind: Any, text: str, words: str
) -> None:
    with pytest.raises(GrammarError) as refusal:
        compile_grammar(vocabulary, GrammarSpec(kind, text))
    message = str(refusal.value)
    assert words in message and "\n" not in message and "non-verbose" not in message and len(message) < 510


def test_the_models_own_special_tokens_may_be_part_of_a_grammar(vocabulary: GrammarVocabulary) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("grammar", 'start: <|im_start|> "x"'))
    assert allowed(grammar) == [1]


def test_text_that_looks_like_a_special_token_is_text(tokenizer: Tokenizer, vocabulary: GrammarVocabulary) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("choice", '["<|im_start|>"]'))
    assert allowed(grammar) == tokenizer.encode("<")


@pytest.mark.parametrize("name", ["byte-level", "gemma", "llama"])
def test_every_token_stands_for_the_bytes_that_llguidance_itself_reads_from_the_tokenizer(name: str) -> None:
    tokenizer = small_tokenizers.ALL[name]
    theirs = LLTokenizer(tokenizer._inner.to_str())
    token_bytes = grammar_module._token_bytes(tokenizer)
    for token_id in range(tokenizer.vocab_size):
        assert token_bytes(token_id).removeprefix(grammar_module.SPECIAL) == theirs.decode_bytes([token_id])
        if token_bytes(token_id) != grammar_module.SPECIAL:  # a byte that no text has
            assert token_bytes(token_id).startswith(grammar_module.SPECIAL) == tokenizer.is_special(token_id)
    assert token_bytes(tokenizer.vocab_size) == b""


@pytest.mark.parametrize("name", ["byte-level", "gemma", "llama"])
def test_a_text_may_be_cut_into_any_tokens_that_it_consists_of(name: str) -> None:
    tokenizer = small_tokenizers.ALL[name]
    vocabulary = GrammarVocabulary(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids={1})
    spelled = [*map(grammar_module._token_bytes(tokenizer), range(tokenizer.vocab_size))]
    begins = [id for id, token in enumerate(spelled) if token and "a b €".encode().startswith(token)]
    compiled = compile_grammar(vocabulary, GrammarSpec("choice", '["a b €"]'))
    assert allowed(compiled) == begins


def test_a_text_with_a_zero_character_is_held_to(tokenizer: Tokenizer, vocabulary: GrammarVocabulary) -> None:
    grammar = compile_grammar(vocabulary, GrammarSpec("regex", "a\0b?"))
    grammar.replay(tokenizer.encode("a\0"))
    assert set(allowed(grammar)) >= EOS


@pytest.mark.parametrize(("kind", "text"), [("regex", ""), ("choice", '[""]')])
def test_an_output_may_be_empty(vocabulary: GrammarVocabulary, kind: Any, text: str) -> None:
    assert set(allowed(compile_grammar(vocabulary, GrammarSpec(kind, text)))) == EOS


def test_blanks_between_the_parts_of_json_are_bounded(tokenizer: Tokenizer, vocabulary: GrammarVocabulary) -> None:
    compiled = compile_grammar(vocabulary, KINDS["json_schema"][0])
    for text in ('{"name":"a","age":1,"tags":[]}', '{\n  "name": "a",\n  "age": 1,\n  "tags": [\n    "a"\n  ]\n}'):
        grammar = compiled.fork()
        grammar.replay(tokenizer.encode(text))
        assert grammar.is_finished
    grammar = compiled.fork()
    with pytest.raises(GrammarError):
        grammar.replay(tokenizer.encode("{" + " " * 24 + '"name"'))


def test_grammars_need_no_torch() -> None:
    code = "import sys, workers.text.grammar, workers.text.grammar_check; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
