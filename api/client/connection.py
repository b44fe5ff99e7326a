"""The client's HTTP: one connection pool, requests that are repeated while a server is away, errors with a way out."""

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from api.client.errors import HeadraceError, RequestRefused, ServerUnreachable
from api.client.server import Server
from api.client.types import Json

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 4.0
READ_SECONDS = 90.0  # longer than the longest `Prefer: wait` and than the pauses between an event stream's comments
CONNECT_SECONDS = 5.0
WORTH_TELLING_SECONDS = 1.0  # a shorter pause is not noticed

log = logging.getLogger(__name__)


class Connection:
    """One server and one key. Threads may share it."""

    def __init__(self, server: Server, *, patience_seconds: float, first_contact_seconds: float) -> None:
        self.url = server.url
        self._has_key = server.key is not None
        self._patience_seconds = patience_seconds
        self._first_contact_seconds = min(first_contact_seconds, patience_seconds)
        self._was_reached = False  # set by the first sign that a server is there
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        # A thread that follows a job has a connection to itself: none waits for another's.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, limits=limits)

    def close(self) -> None:
        """Give the connections back to the system."""
        self._http.close()

    @property
    def patience_seconds(self) -> float:
        """How long the server may be away. Of one that was never there, that is likely the wrong address."""
        return self._patience_seconds if self._was_reached else self._first_contact_seconds

    def json(self, method: str, path: str, *, within_seconds: float | None = None, **content: Any) -> Json:
        """The JSON that is answered; repeats the request while the server is away, at most for `within_seconds`.

        `content`: httpx's json, params, headers and so on. What must not happen twice has an Idempotency-Key among
        them, or is done with `json_once`.
        """
        retry = Retry(self, within_seconds)
        while True:
            try:
                return self.json_once(method, path, **content)
            except HeadraceError as error:
                retry.pause_or_raise(error)

    def json_once(self, method: str, path: str, **content: Any) -> Json:
        """The JSON that is answered to a request that is sent once."""
        response = self.send(method, path, **content)
        if not response.is_success:
            raise self._refusal(response)
        body = json_of(response)
        if not body:
            raise self.not_headrace()
        return body

    def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer, whatever it is, to a request that is sent once."""
        with self._as_unreachable():
            response = self._http.request(method, path, **content)
        self._was_reached = True
        return response

    @contextmanager
    def stream(self, path: str, **content: Any) -> Iterator[httpx.Response]:
        """A successful answer whose body is read inside the block; a break of the connection there is an error too."""
        with self._as_unreachable(), self._http.stream("GET", path, **content) as response:
            self._was_reached = True
            if not response.is_success:
                response.read()
                raise self._refusal(response)
            yield response

    def not_headrace(self) -> ServerUnreachable:
        """What to raise for an answer that makes no sense."""
        return ServerUnreachable(f"What answers at {self.url} is not Headrace.", is_passing=False)

    @contextmanager
    def _as_unreachable(self) -> Iterator[None]:
        """Turn httpx's errors into ours."""
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerUnreachable(f"'{self.url}' is not the URL of a server.", is_passing=False) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerUnreachable(f"Nothing answers at {self.url}.") from error
        except httpx.HTTPError as error:
            self._was_reached = True
            raise ServerUnreachable(f"The connection to {self.url} broke: {error or type(error).__name__}.") from error

    def _refusal(self, response: httpx.Response) -> RequestRefused:
        body = json_of(response)
        error = body.get("error")
        if not isinstance(error, dict) or "message" not in error:  # a proxy's answer, not the API's
            message = f"The server answered {response.status_code} {response.reason_phrase}."
            error = {"message": message, "type": "server_error", "param": None, "code": None}
        hint = None
        if response.status_code == httpx.codes.UNAUTHORIZED:
            which = "another key" if self._has_key else "a key"
            hint = f"Give {which} with --key, key= or HEADRACE_API_KEY, or run where HEADRACE_DATA_DIR has its api-key."
        elif error.get("code") == "model_loading":
            hint = "`headrace status` shows when it is there."
        request_id = response.headers.get("x-request-id")
        refused = RequestRefused(response.status_code, {"error": error}, hint=hint, request_id=request_id)
        refused.is_passing &= response.headers.get("x-should-retry") != "false"
        refused.retry_after_seconds = _retry_after(response)
        return refused


class Retry:
    """Growing pauses between attempts, until patience runs out. It is counted from the first failure on."""

    def __init__(self, connection: Connection, within_seconds: float | None = None) -> None:
        self._connection = connection
        self._within_seconds = float("inf") if within_seconds is None else within_seconds
        self.reset()

    def reset(self) -> None:
        """After a success: the next failure is a first one again."""
        self._failing_since: float | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._is_told = False

    def pause_or_raise(self, error: HeadraceError) -> None:
        """Wait before trying again; raise `error` when it is no passing one, or would outlast all patience."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        # Clients that failed together do not come back together.
        pause_seconds = max(self._pause_seconds, error.retry_after_seconds) * random.uniform(1.0, 1.2)
        patience_seconds = min(self._connection.patience_seconds, self._within_seconds)
        if not error.is_passing or now + pause_seconds > self._failing_since + patience_seconds:
            raise error
        if pause_seconds >= WORTH_TELLING_SECONDS and not self._is_told:
            log.warning("%s Trying again.", error.message)
            self._is_told = True
        time.sleep(pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)


def json_of(response: httpx.Response) -> Json:
    """The JSON object in a response; empty when there is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _retry_after(response: httpx.Response) -> float:
    """The seconds of `Retry-After`; none where it has a date, which only proxies send."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
