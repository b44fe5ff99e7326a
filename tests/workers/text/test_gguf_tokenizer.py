"""Tokenizers rebuilt from GGUF metadata give the token ids of the tokenizers they were made from."""

import pytest
import tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.checkpoints import CORPUS, tokenizer_json
from tests.workers.text.small_tokenizers import byte_level_kv, sentencepiece_kv
from workers.text.gguf_split import SPLITS
from workers.text.gguf_tokenizer import UnsupportedTokenizer, build_tokenizer
from workers.text.tokenizer import Tokenizer


def pieces(kv: dict[str, object], text: str) -> list[str]:
    """What `text` is split into before merging, spelled as text."""
    inner = build_tokenizer(kv)
    assert inner.pre_tokenizer is not None
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    split = inner.pre_tokenizer.pre_tokenize_str(text)
    return [bytes(byte_of[character] for character in piece).decode() for piece, _ in split]


def test_a_byte_level_vocabulary_gives_the_token_ids_it_gave_before() -> None:
    original = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    rebuilt = build_tokenizer(byte_level_kv("gpt-2"))
    for text in (CORPUS, "<|im_start|>user\nHello<|im_end|>", "x  y\t\n\n z", "naïve 日本 👍"):
        assert rebuilt.encode(text).ids == original.encode(text).ids
        assert rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["I", "'m", " 12345", " OKgo", "!?", "\n\n  ", " x"]),
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", "5", " OKgo", "!?", "\n\n  ", " x"]),
        ("llama-bpe", ["I", "'m", " ", "123", "45", " OKgo", "!?\n\n", "  ", " x"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", "5", " OKgo", "!?\n\n", "  ", " x"]),
        ("tekken", ["I", "'m", " ", "1", "2", "3", "4", "5", " OKgo", "!?\n\n", "  ", " x"]),
        ("default", ["I", "'", "m", " ", "123", "45", " OKgo", "!?", "\n\n  ", " x"]),
    ],
)
def test_each_name_splits_as_its_model_does(pre: str, expected: list[str]) -> None:
    assert pieces(byte_level_kv(pre), "I'm 12345 OKgo!?\n\n   x") == expected


def test_contractions_are_split_in_any_case_where_the_model_does() -> None:
    assert pieces(byte_level_kv("qwen2"), "I'M") == ["I", "'M"]
    assert pieces(byte_level_kv("gpt-2"), "I'M") == ["I", "'", "M"]
    assert pieces(byte_level_kv("tekken"), "camelCase") == ["camel", "Case"]


def test_qwen_reads_composed_and_decomposed_letters_alike() -> None:
    tokenizer = build_tokenizer(byte_level_kv("qwen2"))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids


@pytest.mark.parametrize(("pre", "bos"), [("llama-bpe", [0]), ("tekken", [0]), ("qwen2", []), ("gpt-2", [])])
def test_a_file_that_does_not_say_gets_the_bos_token_its_split_implies(pre: str, bos: list[int]) -> None:
    assert build_tokenizer(byte_level_kv(pre)).encode("").ids == bos


def test_the_files_own_word_on_bos_and_eos_is_followed() -> None:
    kv = sentencepiece_kv(add_bos_token=False, add_eos_token=True)
    assert build_tokenizer(kv).encode("a").ids[-1] == 2
    assert build_tokenizer(kv).encode("a").ids[0] != 1


def test_an_unknown_split_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"'bloom' \(tokenizer\.ggml\.pre\); known are .*qwen2"):
        build_tokenizer(byte_level_kv("bloom"))
    assert "bloom" not in SPLITS


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizer, match="'t5'"):
        build_tokenizer(sentencepiece_kv(model="t5"))


def test_sentencepiece_takes_the_best_scored_pair_first() -> None:
    tokenizer = Tokenizer(build_tokenizer(sentencepiece_kv(add_space_prefix=False)))
    token_ids = tokenizer.encode("ab ab  a<table>", add_special_tokens=False)
    assert [tokenizer.token(token_id) for token_id in token_ids] == ["ab", "▁ab", "  ", "a", "<table>"]


def test_a_character_outside_the_vocabulary_falls_back_to_its_bytes() -> None:
    tokenizer = Tokenizer(build_tokenizer(sentencepiece_kv(add_space_prefix=False)))
    token_ids = tokenizer.encode("€", add_special_tokens=False)
    assert [tokenizer.token(token_id) for token_id in token_ids] == ["<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(token_ids) == "€"


def test_the_space_prefix_is_added_before_and_taken_away_after() -> None:
    tokenizer = Tokenizer(build_tokenizer(sentencepiece_kv()))
    token_ids = tokenizer.encode("a", add_special_tokens=False)
    assert [tokenizer.token(token_id) for token_id in token_ids] == ["▁a"]
    assert tokenizer.decode(token_ids) == "a"


def test_a_rebuilt_tokenizer_is_the_same_after_saving() -> None:
    built = build_tokenizer(sentencepiece_kv())
    saved = tokenizers.Tokenizer.from_str(built.to_str())
    assert saved.encode("ab <s> c").ids == built.encode("ab <s> c").ids
