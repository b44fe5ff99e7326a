"""Prompts to token ids in the API process: what it reads beforehand, refuses unread, and does several at once of."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest

from api.texts import Texts
from tests.api.hand_worker import make_card
from tests.api.serving import api_with
from tests.checkpoints import tokenizer_json
from workers.text.tokenizer import Tokenizer


async def test_without_the_tokenizers_file_the_answer_is_a_503_that_names_it(client, make_worker) -> None:
    make_worker(tokenizer_path="/nowhere/tokenizer.json")
    reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": "x"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (503, "tokenizer_unavailable")
    assert "'tiny'" in error["message"] and "/nowhere/tokenizer.json" in error["message"]
    with_ids = await client.post("/v1/jobs", json={"model": "tiny", "prompt": [5], "max_tokens": 1})
    assert with_ids.status_code == 202, "token ids need no tokenizer"


async def test_a_text_that_cannot_fit_is_refused_by_its_size_alone(
    client, worker, tokenizer_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = Tokenizer.load(tokenizer_path).longest_token_bytes
    assert longest is not None
    encoded: list[int] = []
    encode = Texts.encode

    async def spy(texts: Texts, tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(len(text))
        return await encode(texts, tokenizer, text)

    monkeypatch.setattr(Texts, "encode", spy)
    most = 64 * longest
    for size in (most, most + 1):
        reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": "x" * size})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert f"{most + 1:,} bytes" in error["message"] and f"at most {most:,}" in error["message"]
    assert encoded == [most]


class Held:
    """A tokenizer whose encodings last until they are released."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.released = threading.Event()
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._lock:
            self.num_begun += 1
        assert self.released.wait(60)
        return [len(text)]


async def test_few_long_texts_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.texts.INLINE_CHARACTERS", 1)
    texts, tokenizer = Texts(), Held()
    encoding = [asyncio.create_task(texts.encode(tokenizer, "long")) for _ in range(4)]  # type: ignore[arg-type]
    try:
        while tokenizer.num_begun < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # a third would have begun with the others
        assert tokenizer.num_begun == 2
    finally:
        tokenizer.released.set()
    assert await asyncio.gather(*encoding) == [[4]] * 4


async def test_a_tokenizer_is_read_when_its_model_appears_and_not_by_the_first_submit(
    settings, keys, make_worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.warm.LOOK_SECONDS", 0.01)
    read: list[str] = []
    load = Tokenizer.load.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Tokenizer, "load", classmethod(lambda cls, path: read.append(path) or load(cls, path)))
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        path.write_text(tokenizer_json(512))
    make_worker(model="a", tokenizer_path=str(paths[0]))
    async with api_with(settings) as client:
        await read_by_now(read, [str(paths[0])])
        make_worker(model="b", tokenizer_path=str(paths[1]), status="loading")
        await read_by_now(read, [str(path) for path in paths])
        for model in ("a", "b"):
            assert (await submit(client, model)).status_code == 202
    assert read == [str(path) for path in paths]


async def read_by_now(read: list[str], expected: list[str]) -> None:
    """Return once these files were read; the test's timeout is the limit."""
    while read != expected:
        await asyncio.sleep(0.01)


async def submit(client: httpx.AsyncClient, model: str) -> httpx.Response:
    return await client.post("/v1/jobs", json={"model": model, "prompt": "the mill", "max_tokens": 1})


async def test_a_failed_read_is_tried_again_by_the_next_submit(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    texts, card = Texts(), make_card(str(path))
    with pytest.raises(Exception, match="cannot read the tokenizer"):
        await texts.tokenizer(card)
    path.write_text(tokenizer_json(512))
    assert (await texts.tokenizer(card)).vocab_size > 0
