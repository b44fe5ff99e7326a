"""One token's text by itself, where tokens are shown without their neighbours."""

from tests.workers.text.small_tokenizers import ALL
from workers.text.token_text import token_bytes, token_text


def ids_of(kind: str, *tokens: str) -> list[int]:
    """The ids of vocabulary entries, as they are spelled there."""
    tokenizer = ALL[kind]
    return [next(i for i in range(tokenizer.vocab_size) if tokenizer.token(i) == token) for token in tokens]


def test_a_token_that_is_no_whole_character_shows_its_bytes() -> None:
    byte_level = ids_of("byte-level", "Ã", "©", "Ġ", "a")  # 0xC3 and 0xA9, which are é together
    assert [token_text(ALL["byte-level"], i) for i in byte_level] == ["bytes:\\xc3", "bytes:\\xa9", " ", "a"]
    fallback = ids_of("gemma", "<0xE2>", "<0xFF>", "<0x41>")
    assert [token_text(ALL["gemma"], i) for i in fallback] == ["bytes:\\xe2", "bytes:\\xff", "A"]


def test_the_replacement_character_itself_is_a_character() -> None:
    (token_id,) = ids_of("gemma", "\ufffd")
    assert token_text(ALL["gemma"], token_id) == "\ufffd"


def test_a_leading_space_tells_a_token_from_its_twin() -> None:
    assert [token_text(ALL["llama"], i) for i in ids_of("llama", "a", "▁a", "▁▁")] == ["a", " a", "  "]


def test_special_tokens_show_their_name_and_unknown_ids_nothing() -> None:
    assert (token_text(ALL["llama"], 1), token_text(ALL["llama"], 10**6)) == ("<s>", "")


def test_the_bytes_of_a_token_are_those_of_its_text_or_what_it_is_of_a_character() -> None:
    assert [token_bytes(ALL["byte-level"], i) for i in ids_of("byte-level", "Ã", "Ġ")] == [b"\xc3", b" "]
    assert [token_bytes(ALL["gemma"], i) for i in ids_of("gemma", "<0xE2>", "▁a", "日")] == [
        b"\xe2",
        b" a",
        "日".encode(),
    ]
    assert (token_bytes(ALL["llama"], 1), token_bytes(ALL["llama"], 10**6)) == (b"<s>", b"")
