"""The unmodified `openai` client, in front of the API and a worker driven by hand, as in `tests/api`."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from sqlalchemy import Engine

from api.metrics import Metrics
from api.services import open_services
from db.settings import Settings
from tests.api.conftest import client, keys, make_worker, sdk, stranger, tokenizer_path, url, worker
from tests.api.hand_worker import HandWorker
from tests.openai.batch_world import BatchWorld

__all__ = ["client", "keys", "make_worker", "sdk", "stranger", "tokenizer_path", "url", "worker"]


@pytest.fixture
def sync_sdk(url: str, keys: tuple[str, str]) -> Callable[..., Any]:
    """Calls the synchronous client, on a thread: the API lives in the test's own event loop."""
    import asyncio

    def call(act: Callable[[openai.OpenAI], Any]) -> Any:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=keys[0]) as sdk:
            return act(sdk)

    return lambda act: asyncio.to_thread(call, act)


@pytest.fixture
async def world(
    settings: Settings, engine: Engine, sdk: openai.AsyncOpenAI, worker: HandWorker
) -> AsyncIterator[BatchWorld]:
    """Batches, advanced a round at a time, with a window of four lines."""
    async with open_services(settings.model_copy(update={"batch_window": 4}), Metrics()) as services:
        world = BatchWorld(services, engine, sdk, worker)
        yield world
        await world.runner.close()
