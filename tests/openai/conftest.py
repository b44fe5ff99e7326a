"""The API as a real server, the official client of it, and a worker driven by hand."""

from collections.abc import AsyncIterator

import openai
import pytest

from tests.api.conftest import *  # noqa: F403 - the fixtures of the API's own tests
from tests.api.hand_worker import HandWorker

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture
def worker(make_worker) -> HandWorker:
    """Serves a model with a chat template."""
    made: HandWorker = make_worker(chat_template=TEMPLATE, max_model_len=512, num_blocks=64)
    return made


@pytest.fixture
async def sdk(url: str, keys: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys[0], max_retries=0) as sdk:
        yield sdk
