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
from workers.text.grammar import Grammar, GrammarError, GrammarSpec, GrammarVocabulary
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


class Reading:
    """Reads a vocabulary while its gate is open, and counts."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.has_begun = threading.Event()
        self.num_begun = 0

    def __call__(self, tokenizer: Tokenizer, **options: Any) -> GrammarVocabulary:
        self.num_begun += 1
        self.has_begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        return GrammarVocabulary(tokenizer, **options)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    reading = Reading()
    monkeypatch.setattr(grammar_compiler, "GrammarVocabulary", reading)
    yield reading
    reading.gate.set()


def test_the_vocabulary_is_read_with_the_first_grammar_once_for_those_that_come_together(
    tokenizer: Tokenizer, reading: Reading
) -> None:
    compiler = make_compiler(tokenizer)
    assert compiler._vocabulary is None and not reading.has_begun.is_set()
    futures = [compiler.compile(regex(text)) for text in "ab"]
    assert reading.has_begun.wait(PATIENCE_SECONDS)
    wait_until(compiler._queue.empty, "the other thread to take the other grammar")
    assert not any(future.done() for future in futures)
    reading.gate.set()
    assert all(future.result(PATIENCE_SECONDS).mask() for future in futures)
    assert compiler.compile(regex("c")).result(PATIENCE_SECONDS).mask()
    assert reading.num_begun == 1


def test_the_time_of_a_grammar_begins_when_the_vocabulary_is_there(tokenizer: Tokenizer, reading: Reading) -> None:
    compiler = make_compiler(tokenizer, timeout_seconds=PATIENCE_SECONDS)
    before = set(threading.enumerate())
    future = compiler.compile(regex("a"))
    assert reading.has_begun.wait(PATIENCE_SECONDS)
    assert not any(isinstance(thread, threading.Timer) for thread in set(threading.enumerate()) - before)
    reading.gate.set()
    assert future.result(PATIENCE_SECONDS).mask()


class Panic(BaseException):
    """As pyo3 raises it for a panic in Rust, which is no Exception."""


@pytest.mark.parametrize("kind", [MemoryError, Panic])
def test_whatever_reading_the_vocabulary_raises_fails_every_grammar_with_that_reason(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    num_read = 0

    def fail(*_: object, **options: object) -> GrammarVocabulary:
        nonlocal num_read
        num_read += 1
        raise kind("no room")

    monkeypatch.setattr(grammar_compiler, "GrammarVocabulary", fail)
    compiler = make_compiler(tokenizer)
    for text in "abcd":
        with pytest.raises(GrammarError, match=f"{kind.__name__}: no room"):
            compiler.compile(regex(text)).result(PATIENCE_SECONDS)
    assert num_read == 1


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


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_whatever_a_compilation_raises_fails_it_and_no_other(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def fail(*_: object) -> Grammar:
        raise kind("a bug")

    compiler = make_compiler(tokenizer)
    monkeypatch.setattr(grammar_compiler, "compile_grammar", fail)
    for text in "abcd":
        with pytest.raises(GrammarError, match=f"{kind.__name__}: a bug"):
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
