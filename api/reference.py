"""The OpenAPI schema: what FastAPI makes of the routes, put right where the API knows better."""

import json
from typing import Any

from fastapi import FastAPI

from api.fields import INT64_MAX
from api.scopes import scope_of
from db.scopes import Scope

REQUEST_ID = {
    "description": "Names this request in the log; one that you send (letters, digits, `._-`) is kept.",
    "schema": {"type": "string"},
}


RATE_MEANINGS = {
    "limit": "a minute that this key may send",
    "remaining": "left of them now",
    "reset": "full again after so long, such as `6m0s`",
}
RATE_HEADERS = {
    f"x-ratelimit-{what}-{unit}": {
        "description": f"{unit.capitalize()}: {meaning}. Absent where they are not limited.",
        "schema": {"type": "string"},
    }
    for unit in ("requests", "tokens")
    for what, meaning in RATE_MEANINGS.items()
}


def make_reference(app: FastAPI) -> str:
    """The schema as JSON."""
    schema = app.openapi()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _correct_replies(operation["responses"])
            _add_scope(operation, scope_of(method.upper(), path))
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    for model in schema["components"]["schemas"].values():
        for field in model.get("properties", {}).values():
            _correct_integers(field)
    return json.dumps(schema)


def _correct_replies(replies: dict[str, Any]) -> None:
    """Take away the 422 that FastAPI adds to every route: ours are 400s in the one shape."""
    if "HTTPValidationError" in json.dumps(replies.get("422", {})):
        del replies["422"]
    told = {"x-request-id": REQUEST_ID} | (RATE_HEADERS if "429" in replies else {})
    for reply in replies.values():
        reply["headers"] = reply.get("headers", {}) | told


def _add_scope(operation: dict[str, Any], scope: Scope | None) -> None:
    """Say which scope the key needs; where any key will do, no 403 is answered."""
    if scope is None:
        operation["responses"].pop("403", None)
    elif "403" in operation["responses"]:
        operation["responses"]["403"]["description"] = f"The key has not the scope `{scope}`."
        operation["security"] = [dict.fromkeys(scheme, [scope]) for scheme in operation["security"]]


def _correct_integers(field: dict[str, Any]) -> None:
    """Write the bounds of 64-bit integers out: FastAPI makes floats of them, which cannot hold them."""
    if field.get("format") == "int64":
        for branch in field.get("anyOf", [field]):
            if branch.get("type") == "integer":
                branch |= {"minimum": -INT64_MAX - 1, "maximum": INT64_MAX}
