"""Who is asking: the bearer key of a request, what it may do, and the tenant whose jobs it may see."""

import base64
import hashlib
import logging
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, error_response, is_store_away, store_away
from api.rate_limits import Allowance
from api.scopes import check_scope
from api.services import Services
from db.keys import KnownKey, find_key

log = logging.getLogger(__name__)

PRIVATE = "/v1/"
CHALLENGE = {"WWW-Authenticate": "Bearer"}

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="The key that `make run` prints and keeps in `.headrace/api-key`, or one that `headrace keys create` "
    "made. As a basic password it works too: `curl -u :KEY`.",
)


@dataclass(frozen=True)
class Caller:
    """The key a request came with. What Headrace submits by itself, for a batch, has no limits of its own."""

    tenant: str
    key_id: UUID
    allowance: Allowance = field(default_factory=Allowance, compare=False)


class AuthMiddleware:
    """Asks everything under /v1/ for its key, and whether that may do it, before a byte of the body is read.

    Routes get the `CallerDep`. The reply to a submit tells how the key's rates stand, where it has some.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or not path.startswith(PRIVATE):
            await self.app(scope, receive, send)
            return
        services = scope["app"].state.services
        try:
            key = await authenticate(services, Headers(scope=scope))
            check_scope(key.scopes, scope["method"], path)
        except Exception as error:
            await error_response(_refusal_of(error))(scope, receive, send)
            return
        caller = Caller(key.tenant, key.id, Allowance(services.rates, key.id, key.limits))
        scope.setdefault("state", {})["caller"] = caller
        has_rates = caller.allowance.limits.has_rates
        await self.app(scope, receive, _with_rates(scope, send, caller.allowance) if has_rates else send)


async def authenticate(services: Services, headers: Headers) -> KnownKey:
    """The key, or a 401."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    text = {"bearer": credentials.strip(), "basic": _password(credentials)}.get(scheme.lower())
    if not text:
        raise _unauthorized("Send your API key in the header 'Authorization: Bearer <key>'.", code="missing_api_key")
    digest = hashlib.sha256(text.encode()).digest()
    key = await services.keys.get(digest, lambda: _find(services, text))
    if key is None:
        services.keys.forget(digest)  # it may be created a moment later
        raise _unauthorized("This API key is not known here, or was revoked.", code="invalid_api_key")
    return key


async def _caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Caller:
    """What the middleware found. `bearer` is there for the reference, where it makes the Authorize button."""
    caller = request.state.caller
    assert isinstance(caller, Caller), "private routes are under /v1/"
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]


def _with_rates(scope: Scope, send: Send, allowance: Allowance) -> Send:
    """`send`, with the rates of the key in the head of the reply, if that is one to a submit."""

    async def send_with_rates(message: Message) -> None:
        if message["type"] == "http.response.start" and is_submit(scope.get("route")):
            MutableHeaders(scope=message).update(await allowance.headers())
        await send(message)

    return send_with_rates


def is_submit(route: Any) -> bool:
    """Whether what came by this route is a submit: those are the routes that answer 429."""
    return 429 in getattr(route, "responses", ())


def _password(encoded: str) -> str | None:
    """The key as a basic password, for tools that can only be given `http://:key@host`; the user name is ignored."""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor UTF-8: it names no key
        return None


async def _find(services: Services, key: str) -> KnownKey | None:
    async with services.autocommit() as session:
        row = await find_key(session, key)
    return None if row is None else KnownKey.of(row, services.settings)


def _refusal_of(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if not is_store_away(error):
        raise error
    log.warning("cannot look up a key", extra={"error": str(error).splitlines()[0]})
    return store_away()


def _unauthorized(message: str, *, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers=CHALLENGE)
