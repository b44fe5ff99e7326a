"""Jobs whose output must follow a grammar, on the engine thread: compiled beside it, and each failing by itself."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from db.models import Status
from db.sampling import Sampling, StructuredOutput
from db.stream import Token
from tests.workers.engine.fakes import EOS
from tests.workers.held_jobs import make_held
from tests.workers.loop_world import PATIENCE_SECONDS, World, running_loop
from workers import grammar_compiler
from workers.held import HeldJob
from workers.text.grammar import Grammar, GrammarError, GrammarSpec, GrammarVocabulary

LETTER_A = 35  # of the tokenizer's vocabulary; the model's 50 tokens end with O, which is its end of sequence
compile_grammar = grammar_compiler.compile_grammar


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_loop(tmp_path, num_blocks=1024, max_model_len=512, max_num_seqs=4) as world:
        yield world


def structured(
    regex: str,
    *,
    kind: Any = "regex",
    max_tokens: int = 100,
    seed: int = 0,
    deadline: float | None = None,
    **sampling: Any,
) -> HeldJob:
    chosen = Sampling(structured_output=StructuredOutput(kind=kind, text=regex), **sampling)
    return make_held(max_tokens=max_tokens, seed=seed, sampling=chosen, deadline=deadline)


def end_of(world: World, held: HeldJob) -> tuple[str, str | None, str | None]:
    """Status, text and error code of the job, once it has ended."""
    world.ends.wait(held)
    assert held.end is not None
    return held.end.status, held.end.text, held.end.error_code


@pytest.mark.parametrize("seed", range(5))
def test_a_complete_output_ends_the_job_and_its_last_token_is_text(world: World, seed: int) -> None:
    held = structured("[A-F]{3}-[0-9]{1,2}!", seed=seed)
    world.start(held)
    status, text, _ = end_of(world, held)
    assert status == "succeeded" and re.fullmatch("[A-F]{3}-[0-9]{1,2}!", text or "")
    assert held.finish_reasons == ["stop"]
    assert len(held.tokens) == len(text or "")


def test_an_end_of_sequence_token_ends_an_output_that_could_go_on_and_is_no_text(world: World) -> None:
    held = structured("A+", logit_bias={EOS: 100.0})
    world.start(held)
    assert end_of(world, held)[:2] == ("succeeded", "A")
    assert [token.token_id for token in held.tokens] == [LETTER_A, EOS]


def test_an_output_that_is_not_complete_in_time_ends_by_length(world: World) -> None:
    held = structured("[A-F]{30}", max_tokens=9)
    world.start(held)
    assert end_of(world, held)[0] == "succeeded"
    assert held.finish_reasons == ["length"] and len(held.tokens) == 9


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [("regex", "(a", "unclosed group"), ("json_schema", '{"type": "object"}', "no token is left")],
)
def test_a_grammar_that_does_not_compile_or_cannot_be_followed_fails_its_own_job(
    world: World, kind: str, text: str, words: str
) -> None:
    failing, other = structured(text, kind=kind), structured("[A-F]{20}")
    world.start(failing, other)
    assert end_of(world, failing) == ("failed", "", "grammar_failed")
    assert failing.end is not None and words in (failing.end.error_message or "")
    assert end_of(world, other)[0] == "succeeded"


@pytest.mark.parametrize("method", ["mask", "accept"])
def test_a_grammar_that_fails_in_the_middle_fails_its_own_job_with_what_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    class Brittle(Grammar):
        num_accepted = 0

        def accept(self, token_id: int) -> None:
            self.num_accepted += 1
            if method == "accept" and self.num_accepted == 4:
                raise GrammarError("worn out")
            super().accept(token_id)

        def mask(self) -> bytes:
            if method == "mask" and self.num_accepted == 3:
                raise GrammarError("worn out")
            return super().mask()

        def fork(self) -> Grammar:
            return Brittle(self._matcher.copy())

    def compile_brittle(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
        grammar = compile_grammar(vocabulary, spec)
        return Brittle(grammar._matcher) if spec.text.startswith("B") else grammar

    monkeypatch.setattr(grammar_compiler, "compile_grammar", compile_brittle)
    failing, other = structured("B[A-F]{20}"), structured("[A-F]{20}")
    world.start(failing, other)
    status, text, code = end_of(world, failing)
    assert (status, code) == ("failed", "grammar_failed")
    assert re.fullmatch("B[A-F]{2}", text or "")
    assert failing.end is not None and "worn out" in (failing.end.error_message or "")
    assert end_of(world, other)[0] == "succeeded"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is compiled before it is set."""
    gate = threading.Event()

    def compile_gated(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
        assert gate.wait(PATIENCE_SECONDS)
        return compile_grammar(vocabulary, spec)

    monkeypatch.setattr(grammar_compiler, "compile_grammar", compile_gated)
    yield gate
    gate.set()


def test_a_job_waits_outside_the_engine_while_its_grammar_is_compiled_and_holds_up_no_other(
    world: World, gate: threading.Event
) -> None:
    waiting, other = structured("[A-F]{5}"), make_held(max_tokens=30)
    world.start(waiting, other)
    assert world.ends.wait(other) == ["succeeded"]
    assert not waiting.is_added and not waiting.is_closed
    gate.set()
    assert end_of(world, waiting)[0] == "succeeded"


def test_a_job_that_is_cancelled_while_its_grammar_is_compiled_is_never_computed(
    world: World, gate: threading.Event
) -> None:
    cancelled, after = structured("[A-F]{5}"), structured("[A-F]{5}")
    world.start(cancelled)
    world.loop.interrupt(cancelled, Status.CANCELLED)
    assert end_of(world, cancelled)[0] == "cancelled"
    gate.set()
    world.start(after)
    assert end_of(world, after)[0] == "succeeded"
    assert cancelled.tokens == []


@pytest.mark.parametrize("seconds", [-1.0, 0.2])
def test_a_job_whose_limit_passes_while_its_grammar_is_compiled_expires_then_and_is_never_computed(
    world: World, gate: threading.Event, seconds: float
) -> None:
    late, after = structured("[A-F]{5}", deadline=monotonic() + seconds), structured("[A-F]{5}")
    world.start(late)
    assert end_of(world, late) == ("expired", "", "run_for_passed")
    assert not world.loop._compiling
    gate.set()
    world.start(after)
    assert end_of(world, after)[0] == "succeeded"
    assert late.tokens == [] and world.ends.ended == [late, after]


def test_jobs_without_a_grammar_run_before_the_vocabulary_is_read_and_while_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, gate = threading.Event(), threading.Event()

    def read_gated(*arguments: Any, **options: Any) -> GrammarVocabulary:
        is_reading.set()
        assert gate.wait(PATIENCE_SECONDS)
        return GrammarVocabulary(*arguments, **options)

    monkeypatch.setattr(grammar_compiler, "GrammarVocabulary", read_gated)
    with running_loop(tmp_path) as world:
        before, waiting, beside = make_held(), structured("[A-F]{5}", max_tokens=8), make_held()
        world.start(before)
        assert world.ends.wait(before) == ["succeeded"] and not is_reading.is_set()
        world.start(waiting)
        assert is_reading.wait(PATIENCE_SECONDS)
        world.start(beside)
        assert world.ends.wait(beside) == ["succeeded"] and not waiting.is_closed
        gate.set()
        assert end_of(world, waiting)[0] == "succeeded"


def test_a_vocabulary_that_cannot_be_read_fails_the_jobs_with_a_grammar_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> GrammarVocabulary:
        raise MemoryError("no room")

    monkeypatch.setattr(grammar_compiler, "GrammarVocabulary", fail)
    with running_loop(tmp_path) as world:
        first, second, free = structured("[A-F]{5}"), structured("[A-F]{6}"), make_held()
        world.start(first, second, free)
        assert end_of(world, first) == end_of(world, second) == ("failed", "", "grammar_failed")
        assert first.end is not None and "MemoryError: no room" in (first.end.error_message or "")
        assert world.ends.wait(free) == ["succeeded"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_resumed_after_any_token_the_output_is_the_same(world: World, temperature: float) -> None:
    whole = structured("[A-F]{1,6}(-[0-9]{2}){2}", temperature=temperature, seed=3)
    world.start(whole)
    assert end_of(world, whole)[0] == "succeeded"
    for num in range(len(whole.tokens) + 1):
        resumed = structured("[A-F]{1,6}(-[0-9]{2}){2}", temperature=temperature, seed=3)
        resumed.tokens.extend(whole.tokens[:num])
        world.start(resumed)
        assert end_of(world, resumed) == end_of(world, whole)
        assert resumed.tokens == whole.tokens


def test_delivered_tokens_that_do_not_follow_the_grammar_fail_the_job(world: World) -> None:
    held = structured("[A-F]{5}")
    held.tokens.append(Token(LETTER_A + 8, "I"))
    world.start(held)
    assert end_of(world, held)[2] == "grammar_failed"
