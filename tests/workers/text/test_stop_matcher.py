"""No part of a stop string gets through, whatever the pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.text.stop_matcher import Match, StopMatcher

SHORT = st.text("ab", min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """All the text let through, and whether a stop string ended it."""
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        match = matcher.push(piece)
        shown += match.text
        if match.is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """By looking at every beginning of `text`, shortest first."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


def longest_held(stops: list[str], text: str) -> int:
    """Characters at the end of `text` that could still begin a stop string."""
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@settings(max_examples=400, deadline=None)
@given(stops=st.lists(SHORT, max_size=4), pieces=st.lists(st.text("abc", max_size=5), max_size=8))
def test_any_cut_into_pieces_stops_at_the_string_that_is_complete_first(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == expected(stops, "".join(pieces))


@settings(max_examples=400, deadline=None)
@given(stops=st.lists(SHORT, max_size=4), text=st.text("abc", max_size=12))
def test_exactly_what_could_begin_a_stop_string_is_held(stops: list[str], text: str) -> None:
    match = StopMatcher(stops).push(text)
    if not match.is_stopped:
        assert len(text) - len(match.text) == longest_held(stops, text)


@pytest.mark.parametrize(
    ("stops", "pieces", "texts"),
    [
        (["\n\n"], ["a\n", "b"], ["a", "\nb"]),
        (["END"], ["EN", "EN", "X"], ["", "EN", "ENX"]),
        ([], ["anything"], ["anything"]),
    ],
)
def test_held_text_comes_back_when_the_stop_string_does_not(
    stops: list[str], pieces: list[str], texts: list[str]
) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece).text for piece in pieces] == texts


def test_a_stop_string_is_cut_off_with_what_follows_it() -> None:
    assert StopMatcher(["</s>"]).push("yes</s> no") == Match("yes", is_stopped=True)


def test_of_two_that_end_together_the_longer_one_is_cut() -> None:
    assert StopMatcher(["b", "ab"]).push("xab") == Match("x", is_stopped=True)
