"""What a key may do, by its scopes: `read` looks, `submit` sends work and takes it back, `admin` manages."""

from collections.abc import Collection

from api.errors import ApiError
from db.scopes import Scope

OPEN = ("/v1/models", "/v1/queues", "/v1/tokenize")  # may be looked at with any key
MANAGED = ("/v1/webhook_endpoints", "/v1/webhook_events", "/v1/webhook_secret")  # where events go: everybody's business


def scope_of(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None where any key will do."""
    if path.startswith(OPEN):
        return None
    if method in ("GET", "HEAD"):
        return Scope.READ
    return Scope.ADMIN if path.startswith(MANAGED) else Scope.SUBMIT


def check_scope(scopes: Collection[str], method: str, path: str) -> None:
    """Raise the 403 when a key with these scopes may not do this."""
    needed = scope_of(method, path)
    if needed is None or needed in scopes or Scope.ALL in scopes:
        return
    has = ", ".join(f"'{scope}'" for scope in sorted(scopes)) or "none"
    message = (
        f"{method} {path} takes a key with the scope '{needed}'; this one has {has}. "
        f"The operator can make another: headrace keys create NAME --scope {needed}."
    )
    raise ApiError(403, message, code="missing_scope")
