"""The one error shape, `{"error": {"message", "type", "param", "code"}}`, and what turns every failure into it."""

import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from api.fields import MARKS
from db.outage import is_away

log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 2  # a restarted PostgreSQL or Redis is usually back by then
MAX_SHOWN_NAME = 64  # characters of a name that a client made up
NO_RETRY = {"x-should-retry": "false"}  # read by the OpenAI clients, which repeat a 409 and every 5xx otherwise


class ApiError(Exception):
    """A refusal: the HTTP status, what to tell the client, and a code that programs can switch on."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def invalid(message: str, *, param: str | None, code: str = "invalid_value") -> ApiError:
    """A 400 about one field of the request."""
    return ApiError(400, message, code=code, param=param)


def wrong_field(error: Mapping[str, Any]) -> ApiError:
    """The 400 that one of pydantic's errors stands for; its `loc` begins with what the field is in, such as `body`."""
    param = _param(error)
    return invalid(_sentence(error, param), param=param, code=_validation_code(error["type"]))


def not_found(what: str, public_id: str) -> ApiError:
    """The 404 for an id that does not exist or belongs to another tenant: the two are not told apart."""
    return ApiError(404, f"No {what} with id '{public_id}'.", code=f"{what}_not_found")


def retry_after(seconds: float) -> dict[str, str]:
    """Headers that tell a client when to try again; whole seconds for the standard one, never zero."""
    return {"Retry-After": str(max(1, ceil(seconds))), "retry-after-ms": str(max(1, ceil(seconds * 1000)))}


def error_body(status: int, message: str, *, code: str | None, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error, also used inside event streams."""
    return {"error": {"message": message, "type": error_type(status), "param": param, "code": code}}


def error_type(status: int) -> str:
    """OpenAI's name for the class of an error."""
    names = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return names.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_response(error: ApiError) -> JSONResponse:
    """The reply that `error` stands for."""
    body = error_body(error.status, error.message, code=error.code, param=error.param)
    return JSONResponse(body, error.status, headers=error.headers)


def add_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every failure in the one shape. The last resort, a 500, is in `api.request_id`."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    for store_error in (DBAPIError, PoolTimeout, RedisError):
        app.add_exception_handler(store_error, _answer_store_error)


async def _answer_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Validation failures are 400s that name the field; the first field is told, as it often causes the others."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    is_json = "json" in request.headers.get("content-type", "application/json")
    if first["type"] in ("model_attributes_type", "dict_type") and first["loc"] == ("body",) and not is_json:
        return error_response(invalid("The body must be JSON: send Content-Type: application/json.", param=None))
    return error_response(wrong_field(first))


async def _answer_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 408: "body_timeout", 413: "body_too_large"}
    messages = {404: "There is nothing at this path; GET /docs lists what there is."}
    message = messages.get(error.status_code, f"{error.detail}.".replace("..", "."))
    code = codes.get(error.status_code, "invalid_request")
    return error_response(ApiError(error.status_code, message, code=code, headers=error.headers))


async def _answer_store_error(request: Request, error: Exception) -> JSONResponse:
    """PostgreSQL or Redis is away: nothing was accepted, and the client may try again. Other such errors are ours."""
    if isinstance(error, DBAPIError) and not is_store_away(error):
        raise error
    log.warning("store unreachable", extra={"path": request.url.path, "error": str(error).splitlines()[0]})
    return error_response(store_away())


def is_store_away(error: BaseException) -> bool:
    """Whether PostgreSQL or Redis is away or cannot serve us now, rather than refusing what we asked."""
    if isinstance(error, ProgrammingError):
        return False  # ours: a 500 that says so, not an outage to wait out
    return is_away(error) or isinstance(error, (RedisError, ConnectionError))


def store_away() -> ApiError:
    """The 503 while a store cannot be reached."""
    message = "A backing store is not reachable at the moment; nothing was changed. Try again shortly."
    return ApiError(503, message, code="service_unavailable", headers=retry_after(STORE_RETRY_SECONDS))


def _param(error: Mapping[str, Any]) -> str | None:
    """`messages[0].content` for a place in the body; the header's or query's own name otherwise."""
    if error["type"] == "json_invalid":
        return None
    path = ""
    location: tuple[str | int, ...] = error["loc"][1:]
    for place, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_mark(location, place, error["type"]):
            name = part if len(part) <= MAX_SHOWN_NAME else f"{part[:MAX_SHOWN_NAME]}..."
            path += f".{name}" if path else name
    return path or error.get("ctx", {}).get("param")


def _is_mark(location: Sequence[str | int], place: int, kind: str) -> bool:
    """Whether this part of a location is pydantic's and no name: a branch of a union, or `[key]` for a key itself."""
    is_unknown_field = kind == "extra_forbidden" and place == len(location) - 1
    is_metadata_key = place == 1 and location[0] == "metadata"
    return location[place] in (*MARKS, "[key]") and not is_unknown_field and not is_metadata_key


def _validation_code(kind: str) -> str:
    return {"missing": "missing_field", "extra_forbidden": "unknown_field"}.get(kind, "invalid_value")


def _sentence(first: Mapping[str, Any], param: str | None) -> str:
    """pydantic's message as one sentence that names the field."""
    if first["type"] == "json_invalid":
        return f"The body is not valid JSON: {first['ctx']['error']}."
    if first["type"] == "missing":
        return f"'{param}' is required." if param else "A JSON body is required."
    if first["type"] == "extra_forbidden":
        return f"'{param}' is not a known field."
    if first["type"] in ("model_type", "model_attributes_type"):
        return f"'{param}': must be an object." if param else "The body must be an object."
    # What is counted after validation is counted before it too: no list of ours changes its length.
    detail = first["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return f"{detail}." if param is None else f"'{param}': {detail[:1].lower()}{detail[1:]}."
