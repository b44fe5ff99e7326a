"""What each token's event carries, and that a resumed job carries on with the same text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.text import small_tokenizers
from workers.text.output_text import OutputText, Piece

TOKENIZER = small_tokenizers.ALL["gemma"]
A, B, BLANK_AB, EOS = 260, 261, 267, 2


def write(output: OutputText, token_ids: list[int]) -> list[Piece]:
    pieces: list[Piece] = []
    for index, token_id in enumerate(token_ids):
        pieces.append(output.push(token_id, is_last=index + 1 == len(token_ids)))
        if output.is_stopped:
            break
    return pieces


def test_the_last_token_carries_what_was_held() -> None:
    output = OutputText(TOKENIZER, ["ab!"])
    assert [piece.text for piece in write(output, [A, B])] == ["", "ab"]
    assert output.text == "ab"
    assert output.offsets == [0, 2]


def test_a_hidden_token_has_no_text_but_lets_the_held_text_go() -> None:
    output = OutputText(TOKENIZER, ["ab"])
    output.push(A, is_last=False)
    assert output.push(B, is_last=True, hide=True) == Piece("a", is_stopped=False)


def test_a_stop_string_over_two_tokens_shows_nothing_of_itself() -> None:
    output = OutputText(TOKENIZER, [" ab", "aa"])
    assert write(output, [B, A, A]) == [Piece("b", False), Piece("", False), Piece("", True)]
    assert output.is_stopped and output.text == "b" and output.offsets == [1, 1, 1]


def test_a_stop_string_found_only_in_the_flushed_bytes_still_stops() -> None:
    euro = [3 + byte for byte in "€".encode()]
    output = OutputText(TOKENIZER, ["€"])
    assert write(output, [A, *euro])[-1] == Piece("", is_stopped=True)
    assert output.text == "a"


@settings(max_examples=200, deadline=None)
@given(
    token_ids=st.lists(st.sampled_from([A, B, BLANK_AB, EOS, *range(0xC3, 0xE5)]), min_size=1, max_size=30),
    stops=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3),
    cut=st.integers(0, 30),
)
def test_a_resumed_output_writes_what_an_undisturbed_one_does(token_ids: list[int], stops: list[str], cut: int) -> None:
    whole = OutputText(TOKENIZER, stops)
    pieces = write(whole, token_ids)
    prefix = token_ids[: min(cut, len(pieces) - 1)]
    resumed = OutputText(TOKENIZER, stops)
    assert resumed.replay(prefix) == pieces[: len(prefix)]
    assert write(resumed, token_ids[len(prefix) :]) == pieces[len(prefix) :]
    assert (resumed.text, resumed.offsets) == (whole.text, whole.offsets)
    assert whole.offsets[-1] == len(whole.text)
    assert "".join(piece.text for piece in pieces) == whole.text
