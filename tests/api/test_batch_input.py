"""Input files read line by line: where lines are, in which order they run, and how much memory that takes."""

import io
import json
import tracemalloc
from os.path import commonprefix
from typing import Any

import pytest

from api.batches import input as batch_input
from api.batches.input import check_input, parse_body, prefix_key

URL = "/v1/completions"


def line(custom_id: str, **body: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}).encode()


def test_lines_are_found_where_they_are_whatever_ends_them() -> None:
    text = (
        b"\xef\xbb\xbf" + line("a", prompt="1") + b"\r\n\n  \n" + line("b", prompt="2") + b"\n" + line("c", prompt="3")
    )
    checked = check_input(io.BytesIO(text), URL)
    assert checked.errors == []
    found = [text[each.first_byte :][: each.num_bytes] for each in checked.places]
    assert [parse_body(each) for each in found] == [{"prompt": "1"}, {"prompt": "2"}, {"prompt": "3"}]
    assert [each.line for each in checked.places] == [1, 4, 5]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_lines_are_the_same_however_the_file_comes(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    text = b"\n".join(line(str(i), prompt="x" * i) for i in range(20))
    whole = check_input(io.BytesIO(text), URL)
    monkeypatch.setattr(batch_input, "CHUNK_BYTES", chunk)
    assert check_input(io.BytesIO(text), URL) == whole


def test_what_begins_alike_runs_together_the_longest_beginnings_first_of_all() -> None:
    system = "You are a miller. " * 20
    prompts = [
        f"{topic}{question}"
        for question in ("Why?", "How?", "When?")
        for topic in (system + "Wheat. " * 100, "Other", system + "Rye. " * 100)
    ]
    checked = check_input(io.BytesIO(b"\n".join(line(str(i), prompt=p) for i, p in enumerate(prompts))), URL)
    order = [int(each.custom_id) % 3 for each in sorted(checked.places, key=lambda each: each.place)]
    runs = [kind for i, kind in enumerate(order) if i == 0 or order[i - 1] != kind]
    assert sorted(runs) == [0, 1, 2], "each topic in one run"
    assert runs.index(1) != 1, "and the two that share a system prompt side by side"


def test_equal_prompts_keep_the_order_of_the_file() -> None:
    checked = check_input(io.BytesIO(b"\n".join(line(str(i), prompt="same") for i in range(50))), URL)
    assert [each.place for each in checked.places] == list(range(50))


def test_messages_and_token_ids_have_beginnings_too() -> None:
    chats = [[{"role": "system", "content": "s" * 300}, {"role": "user", "content": last}] for last in "ab"]
    keys = [prefix_key({"messages": chat}) for chat in chats]
    assert keys[0] != keys[1] and len(commonprefix(keys)) > 300
    keys = [prefix_key({"prompt": [*range(5000), last]}) for last in (1, 2)]
    assert keys[0] == keys[1], "they differ too late to be told apart"
    keys = [prefix_key({"prompt": [*range(1000), last]}) for last in (1, 2)]
    assert keys[0] != keys[1] and len(commonprefix(keys)) > 512


def test_a_line_longer_than_any_request_is_named_and_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_input, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(batch_input, "CHUNK_BYTES", 100)
    source = io.BytesIO(line("a", prompt="") + b"\n" + b"x" * 100_000)
    [error] = check_input(source, URL).errors
    assert (error["code"], error["line"]) == ("line_too_long", 2)
    assert source.tell() < 2000


def test_only_the_first_errors_are_told() -> None:
    checked = check_input(io.BytesIO(b"nonsense\n" * 1000), URL)
    assert len(checked.errors) == batch_input.MAX_ERRORS


def test_a_large_file_takes_little_memory() -> None:
    num_lines, size = 2000, 20_000

    class Source(io.RawIOBase):  # makes its bytes as it is read
        def __init__(self) -> None:
            self.lines = (line(str(i), prompt="x" * size) + b"\n" for i in range(num_lines))

        def read(self, num: int = -1) -> bytes:
            return b"".join(text for text, _ in zip(self.lines, range(50), strict=False))

    tracemalloc.start()
    checked = check_input(Source(), URL)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not checked.errors and len(checked.places) >= num_lines - 50
    assert peak < num_lines * size / 4
