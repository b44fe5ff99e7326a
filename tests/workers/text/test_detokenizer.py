"""The deltas joined are the decoded text, for every kind of tokenizer and any token ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.text import small_tokenizers
from workers.text.detokenizer import WINDOW_TOKENS, Detokenizer
from workers.text.token_text import ALPHABET
from workers.text.tokenizer import Tokenizer

TOKENIZERS = small_tokenizers.ALL


def deltas(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_deltas_joined_are_the_decoded_text_for_any_token_ids(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=3 * WINDOW_TOKENS))
    assert "".join(deltas(tokenizer, token_ids)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["byte-level", "gemma", "llama"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_text_survives_the_way_to_token_ids_and_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    token_ids = tokenizer.encode(text)
    assert "".join(deltas(tokenizer, token_ids)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["byte-level", "gemma"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_broken_utf8_between_words_neither_loses_nor_repeats_a_character(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    byte_ids = byte_tokens(tokenizer)
    words = tokenizer.encode("ab a", add_special_tokens=False)
    choices = st.sampled_from([*(byte_ids[byte] for byte in b"\xe2\x82\xac\xf0\x9f\xff\x80\xed\xa0\xc3a"), *words])
    token_ids = data.draw(st.lists(choices, max_size=40))
    assert "".join(deltas(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def byte_tokens(tokenizer: Tokenizer) -> list[int]:
    """The token id of each byte."""
    if tokenizer is TOKENIZERS["gemma"]:
        return list(range(3, 259))
    by_token = {tokenizer.token(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [by_token[character] for character, _ in sorted(ALPHABET.items(), key=lambda item: item[1])]


def test_an_emoji_in_four_tokens_arrives_whole_with_the_last() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    byte_ids = byte_tokens(tokenizer)
    token_ids = [byte_ids[byte] for byte in "👍".encode()]
    assert deltas(tokenizer, [*token_ids, byte_ids[ord("!")]]) == ["", "", "", "👍", "!", ""]


def test_a_run_of_byte_tokens_is_held_until_it_has_ended() -> None:
    token_ids = [3 + byte for byte in "€".encode()] + [260]
    assert deltas(TOKENIZERS["gemma"], token_ids) == ["", "", "", "€a", ""]


def test_a_special_token_inside_a_run_of_bytes_does_not_cut_the_character() -> None:
    first, second, third = (3 + byte for byte in "€".encode())
    assert deltas(TOKENIZERS["gemma"], [first, 2, second, third, 260]) == ["", "", "", "", "€a", ""]


def test_an_unfinished_character_at_the_end_is_one_replacement_character() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    token_ids = [byte_tokens(tokenizer)[byte] for byte in "👍".encode()[:3]]
    assert deltas(tokenizer, token_ids) == ["", "", "", "\ufffd"]


def test_words_arrive_with_their_token_and_only_the_first_loses_its_space() -> None:
    tokenizer = TOKENIZERS["llama"]
    assert deltas(tokenizer, tokenizer.encode("ab a")) == ["", "ab", " a", ""]


@pytest.mark.parametrize("name", ["gemma", "llama"])
def test_the_window_stays_short_over_thousands_of_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    longest = 0

    class Counting(Tokenizer):
        def __init__(self) -> None:
            self.__dict__.update(tokenizer.__dict__)

        def decode(self, token_ids, skip_special_tokens=True):  # type: ignore[no-untyped-def]
            nonlocal longest
            longest = max(longest, len(token_ids))
            return super().decode(token_ids, skip_special_tokens)

    token_ids = tokenizer.encode("ab a.c" * 500)
    assert "".join(deltas(Counting(), token_ids)) == tokenizer.decode(token_ids)
    assert longest <= WINDOW_TOKENS
