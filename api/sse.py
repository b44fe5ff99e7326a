"""Server-sent events as bytes, and the response that sends them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.leaving import until_disconnect

KEEPALIVE_SECONDS = 15.0
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes one for each call
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the second keeps nginx from collecting events


def frame(data: dict[str, Any], *, event: str | None = None, number: int | None = None) -> bytes:
    """One event. With a number it can be resumed from; the OpenAI clients must not be sent one.

    In ASCII: readers that cut lines at U+2028 or U+0085 would otherwise cut the JSON.
    """
    head = ("" if event is None else f"event: {event}\n") + ("" if number is None else f"id: {number}\n")
    return f"{head}data: {_encode(data)}\n\n".encode("ascii")


def stream_example(example: str) -> dict[int | str, dict[str, Any]]:
    """Of a route in the reference: its answer may be such events."""
    return {200: {"content": {"text/event-stream": {"example": example}}}}


class EventResponse(Response):
    """Sends frames until they end, the client leaves or the server stops. Comments keep idle connections open.

    Two tasks a stream: a stream is a client that waits, and there may be thousands.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes], *, on_over: Callable[[], None] | None = None) -> None:
        """`on_over` is called once it is over, however that came."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._on_over = on_over
        self._sending = asyncio.Lock()  # a comment must not get behind the last frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = scope["app"].state.services.streams
        frames = asyncio.create_task(self._send_frames(send))
        gone = asyncio.create_task(until_disconnect(receive))
        streams.add(frames)
        try:
            while not frames.done() and not gone.done():
                await asyncio.wait({frames, gone}, timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not frames.done() and not gone.done():
                    await self._send(send, KEEPALIVE)
        finally:
            streams.discard(frames)
            frames.cancel()
            gone.cancel()
            await asyncio.wait({frames, gone})
            if self._on_over is not None:
                self._on_over()
        if not frames.cancelled():
            frames.result()

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames):
            async for each in self._frames:
                await self._send(send, each)
        async with self._sending:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, body: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": True})
