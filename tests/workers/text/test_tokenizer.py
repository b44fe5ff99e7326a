"""Encoding and decoding as the API and the worker use them."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

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


def test_a_tokenizer_that_keeps_every_byte_knows_the_most_bytes_of_a_token() -> None:
    assert small_tokenizers.ALL["gemma"].longest_token_bytes == len("<table>")
    byte_level = small_tokenizers.ALL["byte-level"].longest_token_bytes
    assert byte_level is not None
    text = "The quick brown fox. née tag \u2603 \U0001f600" * 9
    assert len(text.encode()) <= byte_level * len(small_tokenizers.ALL["byte-level"].encode(text))


@pytest.mark.parametrize(
    "step",
    [
        normalizers.Strip(),
        normalizers.Lowercase(),
        normalizers.Replace("``", "x"),
        normalizers.Replace(tokenizers.Regex(" +"), "   "),
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Split("a", "removed"),
        pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(), pre_tokenizers.Whitespace()]),
    ],
    ids=repr,
)
def test_where_text_may_be_dropped_a_token_may_stand_for_any_number_of_bytes(step: Any) -> None:
    inner = tokenizers.Tokenizer.from_str(tokenizer_json(512))
    if isinstance(step, normalizers.Normalizer):
        inner.normalizer = step
    else:
        inner.pre_tokenizer = step
    assert Tokenizer(inner).longest_token_bytes is None
    assert small_tokenizers.ALL["metaspace"].longest_token_bytes is None, "its unknown words are one token each"


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = small_tokenizers.ALL["byte-level"]
    encoding = threading.Thread(target=tokenizer.encode, args=("The quick brown fox. " * 100_000,))
    num_turns = 0
    encoding.start()
    while encoding.is_alive():
        time.sleep(0)  # lets go of the lock, and needs it back to go on
        num_turns += 1
    assert num_turns > 1_000, "a lock held by the encoding would have left a turn or two"
