"""The outermost layer: an id and a measurement for every request, and a readable 500 for what nobody foresaw."""

import logging
import re
import time
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_body
from api.metrics import Metrics

log = logging.getLogger(__name__)

CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestIdMiddleware:
    """Sets `x-request-id` on every reply, error or not. A well-formed id sent by the client is kept."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        started = time.perf_counter()
        status = 0  # none sent yet

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id, "path": scope["path"]})
            if status:
                raise  # the reply has begun; only cutting it off tells the client
            await _internal_error(request_id)(scope, receive, send_with_id)
        finally:
            self.metrics.observe_request(scope, status, time.perf_counter() - started)


def _request_id(headers: Headers) -> str:
    sent = headers.get("x-request-id", "")
    return sent if CLIENT_ID.fullmatch(sent) else f"req_{uuid4().hex}"


def _internal_error(request_id: str) -> JSONResponse:
    message = f"The server met an error that it did not expect; its log has the details under {request_id}."
    return JSONResponse(error_body(500, message, code="internal_error"), 500)
