"""llguidance's C interface: what it refuses, and that a worker's threads run while it takes its time."""

import subprocess
import sys
import threading
from time import perf_counter
from typing import Any

import pytest

from workers.text import llguidance_c
from workers.text.llguidance_c import CMatcher, CTokenizer, TokenizerRefused

START = '{"grammars": [{"lark_grammar": "start: /[ab]+/"}]}'


@pytest.mark.parametrize("eos_token_ids", [[2], [0, 2]])
def test_an_end_of_sequence_token_beyond_the_vocabulary_is_refused_with_the_numbers(eos_token_ids: list[int]) -> None:
    with pytest.raises(TokenizerRefused, match=r"2 is out of range \(vocab_size=2\)"):
        CTokenizer([b"a", b"b"], eos_token_ids=eos_token_ids)


def test_other_threads_run_while_a_vocabulary_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [b"\xffend", *(f"{number:06}".encode() for number in range(100_000))]
    times: list[float] = []
    new_tokenizer = llguidance_c._new_tokenizer

    def timed(*arguments: Any) -> Any:
        times.append(perf_counter())
        pointer = new_tokenizer(*arguments)
        times.append(perf_counter())
        return pointer

    monkeypatch.setattr(llguidance_c, "_new_tokenizer", timed)
    thread = threading.Thread(target=CTokenizer, args=(tokens,), kwargs={"eos_token_ids": [0]})
    thread.start()
    ran = []
    while thread.is_alive():
        ran.append(perf_counter())
    began, ended = times
    third = (ended - began) / 3
    assert any(began + third < time < ended - third for time in ran), "nothing ran in the middle of the call"


def test_a_tokenizer_may_go_while_a_matcher_is_there_and_every_copy_lives_by_itself() -> None:
    matcher = CMatcher.compile(CTokenizer([b"\xffend", b"a", b"b"], eos_token_ids=[0]), START)
    copy = matcher.copy()
    matcher.consume(1)
    del matcher
    assert copy.mask()[0] == 0b110
    copy.consume(2)
    assert copy.mask()[0] == 0b111
    for _ in range(2):  # the second time it has stopped
        copy.consume(0)
    assert copy.is_stopped and copy.error is None and copy.mask()[0] == 0b001


def test_an_error_stays_with_its_matcher() -> None:
    matcher = CMatcher.compile(CTokenizer([b"\xffend", b"a", b"c"], eos_token_ids=[0]), START)
    copy = matcher.copy()
    matcher.consume(2)
    assert matcher.error is not None and copy.error is None


def test_nothing_is_lost_when_an_interpreter_ends_with_matchers_alive() -> None:
    code = (
        "from workers.text.llguidance_c import CMatcher, CTokenizer\n"
        f"matcher = CMatcher.compile(CTokenizer([b'a', b'b'], eos_token_ids=[]), {START!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stderr == ""
