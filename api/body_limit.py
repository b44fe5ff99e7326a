"""The most bytes a request may send."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16 * 1024 * 1024


class BodyLimitMiddleware:
    """Refuses a longer body with a 413, at its first byte where the request says its length."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        is_too_long = declared.isdecimal() and int(declared) > self.max_bytes
        num_received = 0

        async def receive_limited() -> Message:
            nonlocal num_received
            if is_too_long:
                raise self._too_long()
            message = await receive()
            num_received += len(message.get("body", b""))
            if num_received > self.max_bytes:
                raise self._too_long()
            return message

        await self.app(scope, receive_limited, send)

    def _too_long(self) -> HTTPException:
        return HTTPException(413, f"The body is over the limit of {self.max_bytes:,} bytes")
