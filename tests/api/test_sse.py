"""The response that sends events: what comes while nothing happens, and how it ends."""

import asyncio
import socket

import httpx
import pytest
import uvicorn

from api import sse
from api.app import create_app
from db.settings import Settings
from tests.api.serving import KEY, Server, make_client


async def test_an_idle_stream_is_kept_open_by_comments(client, submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.01)
    job = await submit()
    async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as reply:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        lines = reply.aiter_lines()
        while (await anext(lines)) != ": keepalive":
            pass
        assert await anext(lines) == ""


async def test_a_server_that_stops_does_not_wait_for_streams(settings: Settings, keys, worker) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(create_app(settings), log_config=None, timeout_graceful_shutdown=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with make_client(f"http://127.0.0.1:{listener.getsockname()[1]}", KEY) as client:
        job = (await client.post("/v1/jobs", json={"model": "tiny", "prompt": "the mill", "max_tokens": 8})).json()
        async with client.stream("GET", f"/v1/jobs/{job['id']}/events") as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            server.stopping.set()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in lines:
                    pass
        await serving
    listener.close()
