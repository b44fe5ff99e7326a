"""The most bytes that a request may send, and the longest that it may take to send them."""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_SECONDS = 60.0
MAX_FILE_BYTES = 200 * 1024 * 1024
FILE_SECONDS = 3600.0
FORM_BYTES = 64 * 1024  # what comes beside the file in its form
FILES_PATH = "/v1/files"


@dataclass(frozen=True)
class Limit:
    """Of one body."""

    num_bytes: int
    seconds: float


class BodyLimitMiddleware:
    """Refuses a longer body with a 413, before its first byte where the request says its length; a slow one by 408."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Body(receive, Headers(scope=scope).get("content-length", "0"), _limit_of(scope)).receive
        await self.app(scope, receive, send)


def _limit_of(scope: Scope) -> Limit:
    path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    if scope["method"] == "POST" and path == FILES_PATH:
        return Limit(MAX_FILE_BYTES + FORM_BYTES, FILE_SECONDS)  # it goes to the disk as it comes
    return Limit(MAX_BODY_BYTES, BODY_SECONDS)


class _Body:
    """One request's body on its way in."""

    def __init__(self, receive: Receive, declared: str, limit: Limit) -> None:
        self._receive = receive
        self._limit = limit
        self._is_too_long = declared.isdecimal() and int(declared) > limit.num_bytes
        self._deadline = asyncio.get_running_loop().time() + limit.seconds
        self._num_received = 0
        self._is_whole = False

    async def receive(self) -> Message:
        """The next message. Once the body is whole there may be one more, and there is no hurry: the client left."""
        if self._is_whole:
            return await self._receive()
        if self._is_too_long:
            raise self._too_long()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            detail = f"The body did not arrive within {self._limit.seconds:g} s"
            raise HTTPException(408, detail, headers={"Connection": "close"}) from None
        self._is_whole = not message.get("more_body", False)
        self._num_received += len(message.get("body", b""))
        if self._num_received > self._limit.num_bytes:
            raise self._too_long()
        return message

    def _too_long(self) -> HTTPException:
        return HTTPException(413, f"The body is over the limit of {self._limit.num_bytes:,} bytes")
