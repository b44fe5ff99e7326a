"""Who is asking: the bearer key of a request, and the tenant whose jobs it may see."""

import base64
import hashlib
import logging
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ApiError, error_response, is_store_away, store_away
from api.services import Services
from db.keys import find_key
from db.models import ApiKey

log = logging.getLogger(__name__)

PRIVATE = "/v1/"
CHALLENGE = {"WWW-Authenticate": "Bearer"}

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="The key that `make run` prints and keeps in `.headrace/api-key`. As a basic password it works too: "
    "`curl -u :KEY`.",
)


@dataclass(frozen=True)
class Caller:
    """The key a request came with."""

    tenant: str
    key_id: UUID


class AuthMiddleware:
    """Asks everything under /v1/ for its key, before a byte of the body is read. Routes get the `CallerDep`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or not path.startswith(PRIVATE):
            await self.app(scope, receive, send)
            return
        try:
            caller = await authenticate(scope["app"].state.services, Headers(scope=scope))
        except Exception as error:
            await error_response(_refusal_of(error))(scope, receive, send)
        else:
            scope.setdefault("state", {})["caller"] = caller
            await self.app(scope, receive, send)


async def authenticate(services: Services, headers: Headers) -> Caller:
    """The caller, or a 401."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    text = {"bearer": credentials.strip(), "basic": _password(credentials)}.get(scheme.lower())
    if not text:
        raise _unauthorized("Send your API key in the header 'Authorization: Bearer <key>'.", code="missing_api_key")
    digest = hashlib.sha256(text.encode()).digest()
    key = await services.keys.get(digest, lambda: _find(services, text))
    if key is None:
        services.keys.forget(digest)  # it may be created a moment later
        raise _unauthorized("This API key is not known here, or was revoked.", code="invalid_api_key")
    return Caller(key.tenant, key.id)


async def _caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Caller:
    """What the middleware found. `bearer` is there for the reference, where it makes the Authorize button."""
    caller = request.state.caller
    assert isinstance(caller, Caller), "private routes are under /v1/"
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]


def _password(encoded: str) -> str | None:
    """The key as a basic password, for tools that can only be given `http://:key@host`; the user name is ignored."""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor UTF-8: it names no key
        return None


async def _find(services: Services, key: str) -> ApiKey | None:
    async with services.autocommit() as session:
        return await find_key(session, key)


def _refusal_of(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if not is_store_away(error):
        raise error
    log.warning("cannot look up a key", extra={"error": str(error).splitlines()[0]})
    return store_away()


def _unauthorized(message: str, *, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers=CHALLENGE)
