"""Who is asking: the bearer key of a request, and the tenant whose jobs it may see."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.errors import ApiError
from api.services import Services, ServicesDep
from db.keys import find_key
from db.models import ApiKey

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


async def authenticate(
    services: ServicesDep,
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Caller:
    """The caller, or a 401."""
    text = _basic_password(request) if credentials is None else credentials.credentials
    if text is None:
        raise _refusal("Send your API key in the header 'Authorization: Bearer <key>'.", code="missing_api_key")
    digest = hashlib.sha256(text.encode()).digest()
    key = await services.keys.get(digest, lambda: _find(services, text))
    if key is None:
        services.keys.forget(digest)  # it may be created a moment later
        raise _refusal("This API key is not known here, or was revoked.", code="invalid_api_key")
    return Caller(key.tenant, key.id)


CallerDep = Annotated[Caller, Depends(authenticate)]


def _basic_password(request: Request) -> str | None:
    """The key as a basic password, for tools that can only be given `http://:key@host`; the user name is ignored."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor UTF-8: it names no key
        return None


async def _find(services: Services, key: str) -> ApiKey | None:
    async with services.sessions() as session:
        return await find_key(session, key)


def _refusal(message: str, *, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers=CHALLENGE)
