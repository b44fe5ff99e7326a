"""Grammars are compiled beside the engine thread: each once, and none for ever."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import EOS_TOKEN_ID, tokenizer_json
from tests.workers.worker_process import wait_until
from workers import grammar_compiler
from workers.grammar_compiler import NUM_THREADS, GrammarCompiler
from workers.text.grammar import Grammar, GrammarError, GrammarSpec
from workers.text.tokenizer import Tokenizer

PATIENCE_SECONDS = 60
compile_grammar = grammar_compiler.compile_grammar


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    return Tokenizer.load(path)


def make_compiler(tokenizer: Tokenizer, **options: Any) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=512, eos_token_ids={EOS_TOKEN_ID}, **options)


def regex(text: str) -> GrammarSpec:
    return GrammarSpec("regex", text)


class Gated:
    """Compiles while its gate is open, and counts."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.compiled: list[GrammarSpec] = []

    def __call__(self, vocabulary: Any, spec: GrammarSpec) -> Grammar:
        self.compiled.append(spec)
        assert self.gate.wait(PATIENCE_SECONDS)
        return compile_grammar(vocabulary, spec)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    gated = Gated()
    monkeypatch.setattr(grammar_compiler, "compile_grammar", gated)
    yield gated
    gated.gate.set()


def test_whoever_asks_does_not_wait_and_one_grammar_is_compiled_once(tokenizer: Tokenizer, gated: Gated) -> None:
    compiler = make_compiler(tokenizer)
    futures = [compiler.compile(regex("a+")) for _ in range(5)]
    assert not any(future.done() for future in futures)
    gated.gate.set()
    grammars = [future.result(PATIENCE_SECONDS) for future in futures]
    assert len({id(grammar) for grammar in grammars}) == 1
    assert gated.compiled == [regex("a+")]
    assert compiler.compile(GrammarSpec("grammar", 'start: "a"')).result(PATIENCE_SECONDS) is not grammars[0]


def test_a_grammar_that_cannot_be_compiled_says_why_and_the_next_is_compiled(tokenizer: Tokenizer) -> None:
    compiler = make_compiler(tokenizer)
    for _ in range(3 * NUM_THREADS):
        with pytest.raises(GrammarError, match="unclosed group"):
            compiler.compile(regex("(a")).result(PATIENCE_SECONDS)
    assert compiler.compile(regex("a")).result(PATIENCE_SECONDS).mask()


def test_grammars_that_take_for_ever_are_given_up_and_others_are_compiled_meanwhile(
    tokenizer: Tokenizer, gated: Gated
) -> None:
    before = set(threading.enumerate())
    compiler = make_compiler(tokenizer, timeout_seconds=0.1)
    for text in ("a", "b", "c"):
        with pytest.raises(GrammarError, match=r"not compiled within 0\.1 seconds"):
            compiler.compile(regex(text)).result(PATIENCE_SECONDS)
    assert len(gated.compiled) > NUM_THREADS
    gated.gate.set()
    assert compiler.compile(regex("d")).result(PATIENCE_SECONDS).mask()
    wait_until(
        lambda: sum(each.name == "grammars" for each in set(threading.enumerate()) - before) == NUM_THREADS,
        "the threads that were given up to end",
    )


def test_whatever_a_compilation_raises_fails_it_and_no_other(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Grammar:
        raise RuntimeError("a bug")

    compiler = make_compiler(tokenizer)
    monkeypatch.setattr(grammar_compiler, "compile_grammar", fail)
    for text in "abcd":
        with pytest.raises(GrammarError, match="RuntimeError: a bug"):
            compiler.compile(regex(text)).result(PATIENCE_SECONDS)
    monkeypatch.setattr(grammar_compiler, "compile_grammar", compile_grammar)
    assert compiler.compile(regex("e")).result(PATIENCE_SECONDS).mask()


def test_for_a_tokenizer_that_llguidance_does_not_know_every_grammar_fails_with_that_reason(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models

    unknown = Tokenizer(Inner(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    compiler = make_compiler(unknown)
    with pytest.raises(GrammarError, match="this model's tokenizer cannot be held to a grammar"):
        compiler.compile(regex("a")).result(PATIENCE_SECONDS)


def test_the_grammars_that_were_not_asked_for_longest_are_forgotten(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_KEPT", 2)
    compiler = make_compiler(tokenizer)
    first, second = compiler.compile(regex("a")), compiler.compile(regex("b"))
    assert compiler.compile(regex("a")) is first
    compiler.compile(regex("c"))
    assert compiler.compile(regex("a")) is first
    assert compiler.compile(regex("b")) is not second
