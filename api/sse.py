"""Server-sent events as bytes, and the response that sends them."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

KEEPALIVE_SECONDS = 15
DONE = b"data: [DONE]\n\n"


def frame(data: dict[str, Any], *, event: str | None = None, number: int | None = None) -> bytes:
    """One event. With a number it can be resumed from; the OpenAI clients must not be sent one.

    In ASCII: readers that cut lines at U+2028 or U+0085 would otherwise cut the JSON.
    """
    head = ("" if event is None else f"event: {event}\n") + ("" if number is None else f"id: {number}\n")
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode("ascii")


class EventResponse(EventSourceResponse):
    """Sends frames. Comments keep idle connections open; `on_over` is called once it is over, however that came."""

    def __init__(self, frames: AsyncIterator[bytes], *, on_over: Callable[[], None] | None = None) -> None:
        super().__init__(
            frames,
            ping=KEEPALIVE_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="keepalive", sep="\n"),
            sep="\n",
        )
        self._on_over = on_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._on_over is not None:
                self._on_over()
