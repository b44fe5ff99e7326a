"""The API as a real HTTP server in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn

import api.server
from api.app import create_app
from db.settings import Settings

KEY = "hr_test-key"
OTHER_KEY = "hr_other-tenant"


class Server(api.server.Server):
    """Ends when it is told to: uvicorn's own looks ten times a second, and tests start hundreds of them."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to the test run."""
        yield


@asynccontextmanager
async def serve(settings: Settings) -> AsyncIterator[str]:
    """The API on a free port; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it on sockets of its own making only
    config = uvicorn.Config(create_app(settings), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stopping.set()
        await serving
        listener.close()


@asynccontextmanager
async def api_with(settings: Settings, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API of its own, with other settings and nothing cached."""
    async with serve(settings.model_copy(update=changes)) as url, make_client(url, KEY) as client:
        yield client


def make_client(url: str, key: str) -> httpx.AsyncClient:
    """A client with a key."""
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
