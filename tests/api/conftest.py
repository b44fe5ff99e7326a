"""A real API process's worth of server in the test's own loop, a key, and a worker driven by hand."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db.keys import create_key
from db.settings import Settings
from tests.api.hand_worker import HandWorker, make_card
from tests.api.serving import KEY, OTHER_KEY, make_client, serve
from tests.checkpoints import tokenizer_json


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    return str(path)


@pytest.fixture
def keys(engine: Engine) -> tuple[str, str]:
    """The keys of two tenants."""
    with Session(engine) as session, session.begin():
        create_key(session, tenant="default", name="test", scopes=["*"], key=KEY)
        create_key(session, tenant="other", name="other", scopes=["*"], key=OTHER_KEY)
    return KEY, OTHER_KEY


@pytest.fixture
async def url(settings: Settings, keys: tuple[str, str]) -> AsyncIterator[str]:
    async with serve(settings) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the first tenant's key."""
    async with make_client(url, KEY) as client:
        yield client


@pytest.fixture
async def stranger(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the other tenant's key."""
    async with make_client(url, OTHER_KEY) as client:
        yield client


@pytest.fixture
async def sdk(url: str, keys: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    """The unmodified `openai` client, with the first tenant's key."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys[0]) as sdk:
        yield sdk


@pytest.fixture
def make_worker(engine: Engine, redis_client: redis.Redis, tokenizer_path: str) -> Callable[..., HandWorker]:
    """Make and register a worker; keywords change its card."""

    def make(**changes: Any) -> HandWorker:
        worker = HandWorker(engine, redis_client, make_card(**{"tokenizer_path": tokenizer_path} | changes))
        worker.register()
        return worker

    return make


@pytest.fixture
def worker(make_worker: Callable[..., HandWorker]) -> Iterator[HandWorker]:
    yield make_worker()


@pytest.fixture
def submit(client: httpx.AsyncClient, worker: HandWorker) -> Callable[..., Any]:
    """Submit a job for the hand-driven worker; returns its JSON."""

    async def submit(**fields: Any) -> dict[str, Any]:
        reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": "the mill", "max_tokens": 8} | fields)
        assert reply.status_code == 202, reply.text
        job: dict[str, Any] = reply.json()
        return job

    return submit
