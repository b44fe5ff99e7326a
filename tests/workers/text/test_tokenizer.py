"""Encoding and decoding as the API and the worker use them."""

from pathlib import Path

import pytest
import tokenizers

from tests.checkpoints import tokenizer_json
from tests.workers.text import small_tokenizers
from workers.text.tokenizer import Tokenizer

LLAMA = small_tokenizers.ALL["llama"]


def test_a_prompt_gets_one_bos_token() -> None:
    assert LLAMA.encode("ab")[0] == 1
    assert LLAMA.encode("ab", add_special_tokens=False)[0] != 1


def test_a_prompt_that_begins_with_the_bos_token_gets_no_second_one() -> None:
    assert LLAMA.encode("<s>ab")[:2] != [1, 1]
    assert LLAMA.encode("<s>ab")[0] == 1


def test_a_model_without_bos_token_gets_none() -> None:
    tokenizer = small_tokenizers.ALL["byte-level"]
    assert tokenizer.encode("Hello") == tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.encode("<|im_start|><|im_start|>") == [1, 1]


def test_an_empty_prompt_is_the_bos_token_or_nothing() -> None:
    assert LLAMA.encode("") == [1]
    assert small_tokenizers.ALL["byte-level"].encode("") == []


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    text = "The quick brown fox jumps over the lazy dog."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_and_unknown_ids_have_no_text() -> None:
    assert LLAMA.is_special(1) and not LLAMA.is_special(260) and not LLAMA.is_special(10**6)
    assert LLAMA.decode([1, 260, 10**6, 2]) == "a"
    assert LLAMA.decode([260, 2], skip_special_tokens=False) == "a</s>"


def test_a_file_that_is_no_tokenizer_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cannot read the tokenizer .*tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")
