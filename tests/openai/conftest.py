"""The API as a server, and a worker driven by hand, for the unmodified `openai` client."""

from collections.abc import AsyncIterator

import openai
import pytest

from tests.api.conftest import client, keys, make_worker, stranger, tokenizer_path, url, worker

__all__ = ["client", "keys", "make_worker", "stranger", "tokenizer_path", "url", "worker"]


@pytest.fixture
async def sdk(url: str, keys: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:  # noqa: F811
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys[0]) as sdk:
        yield sdk
