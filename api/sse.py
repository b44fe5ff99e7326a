"""Server-sent events as bytes, and the response that sends them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

KEEPALIVE_SECONDS = 15
DONE = b"data: [DONE]\n\n"
EXAMPLE_MEDIA = "text/event-stream"


def frame(data: dict[str, Any], *, event: str | None = None, number: int | None = None) -> bytes:
    """One event. With a number it can be resumed from; the OpenAI clients must not be sent one."""
    head = ("" if event is None else f"event: {event}\n") + ("" if number is None else f"id: {number}\n")
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def event_response(
    frames: AsyncIterator[bytes], *, on_close: Callable[[Any], Awaitable[None]] | None = None
) -> EventSourceResponse:
    """The response. Comments keep idle connections open; `on_close` is told when the client leaves."""
    return EventSourceResponse(
        frames,
        ping=KEEPALIVE_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="keepalive", sep="\n"),
        sep="\n",
        client_close_handler_callable=on_close,
    )
