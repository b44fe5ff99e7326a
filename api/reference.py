"""The OpenAPI schema: what FastAPI makes of the routes, put right where the API knows better."""

import json
from typing import Any

from fastapi import FastAPI

from api.fields import INT64_MAX

REQUEST_ID = {
    "description": "Names this request in the log; one that you send (letters, digits, `._-`) is kept.",
    "schema": {"type": "string"},
}


def make_reference(app: FastAPI) -> str:
    """The schema as JSON."""
    schema = app.openapi()
    for operations in schema["paths"].values():
        for operation in operations.values():
            _correct_replies(operation["responses"])
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
    for reply in replies.values():
        reply.setdefault("headers", {})["x-request-id"] = REQUEST_ID


def _correct_integers(field: dict[str, Any]) -> None:
    """Write the bounds of 64-bit integers out: FastAPI makes floats of them, which cannot hold them."""
    if field.get("format") == "int64":
        for branch in field.get("anyOf", [field]):
            if branch.get("type") == "integer":
                branch |= {"minimum": -INT64_MAX - 1, "maximum": INT64_MAX}
