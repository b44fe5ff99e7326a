"""A small synchronous client of the job API, for the command line. Knows HTTP and nothing of terminals."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

from api.event_lines import ENDED, Event, read_events

Json = dict[str, Any]

PATIENCE_SECONDS = 60.0  # how long a watched job's server may be away; a restart takes a few seconds
POLL_SECONDS = 0.25  # a request can wait for a job's end, but not for its start
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 4.0
READ_SECONDS = 90.0  # longer than the longest `Prefer: wait` and than the pauses between an event stream's comments


class ServerUnreachable(Exception):
    """Nothing answers at the URL, or the connection broke before an answer was whole."""


@dataclass
class RequestRefused(Exception):
    """The server answered with an error."""

    status: int
    message: str
    code: str | None
    request_id: str | None
    body: Json

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Readiness:
    """What /readyz answers, and the JSON with which it says why."""

    is_ready: bool
    detail: Json


class Client:
    """One server and one key. Not for threads to share."""

    def __init__(self, url: str, key: str | None, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.url = url.rstrip("/")
        self._patience_seconds = patience_seconds
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(READ_SECONDS, connect=5.0)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def submit(self, body: Json) -> Json:
        """The accepted job. Sent again when the answer is lost, under one idempotency key, so that it runs once."""
        return self._post_once("/v1/jobs", body, str(uuid4()))

    def get(self, job_id: str, *, wait_seconds: int = 0) -> Json:
        """The job as it stands; with `wait_seconds`, as soon as it has ended or after that long."""
        headers = {"Prefer": f"wait={wait_seconds}"} if wait_seconds else {}
        return self._json("GET", _path(job_id), headers=headers)

    def watch(self, job_id: str) -> Iterator[Json]:
        """The job now, then about once a second, the last time when it has ended. Sits out a server's restart."""
        return self._watch(job_id, lambda job: job["status"] in ENDED, wait_seconds=1)

    def watch_start(self, job_id: str) -> Iterator[Json]:
        """The job now, then a few times a second, the last time when it is no longer queued."""
        return self._watch(job_id, lambda job: job["status"] != "queued", pause_seconds=POLL_SECONDS)

    def events(self, job_id: str, *, after: int | None = None) -> Iterator[Event]:
        """The job's events beyond number `after`, each once, over as many connections as it takes, until its end."""
        retry = _Retry(self._patience_seconds)
        while True:
            try:
                for event in self._connect_events(job_id, after):
                    after = event.number
                    retry = _Retry(self._patience_seconds)
                    yield event
                    if event.is_end:
                        return
                error: Exception = ServerUnreachable(f"{self.url} closed the event stream before the job ended")
            except _NothingFollows:
                return
            except (ServerUnreachable, RequestRefused) as broken:
                error = broken
            retry.pause_or_raise(error)

    def cancel(self, job_id: str) -> Json:
        """The job, ended: cancelled now, or as it had ended before."""
        return self._json("POST", f"{_path(job_id)}/cancel")

    def list_jobs(self, parameters: Json) -> Json:
        """A page of jobs, the newest first."""
        return self._json("GET", "/v1/jobs", params=parameters)

    def replay(self, job_id: str) -> Json:
        """The new job that repeats an ended one."""
        return self._post_once(f"{_path(job_id)}/replay", {}, str(uuid4()))

    def replay_many(self, body: Json, idempotency_key: str) -> Json:
        """A page of replays, by filter. Waits while the queue is full, as long as a server may be away."""
        retry = _Retry(self._patience_seconds)
        while True:
            try:
                return self._post_once("/v1/jobs/replay", body, idempotency_key)
            except RequestRefused as refused:
                retry.pause_or_raise(refused)

    def queues(self) -> list[Json]:
        """Depth of each model's tiers."""
        return list(self._json("GET", "/v1/queues")["data"])

    def models(self) -> list[Json]:
        """The served models."""
        return list(self._json("GET", "/v1/models")["data"])

    def readiness(self) -> Readiness:
        """Whether the service can take and run jobs, and what /readyz says about it."""
        response = self._send("GET", "/readyz")
        return Readiness(response.is_success, _json_of(response))

    def _watch(
        self, job_id: str, is_over: Callable[[Json], bool], *, wait_seconds: int = 0, pause_seconds: float = 0.0
    ) -> Iterator[Json]:
        job = self.get(job_id)
        yield job
        retry = _Retry(self._patience_seconds)
        while not is_over(job):
            time.sleep(pause_seconds)
            try:
                job = self.get(job_id, wait_seconds=wait_seconds)
            except (ServerUnreachable, RequestRefused) as error:
                retry.pause_or_raise(error)
                continue
            retry = _Retry(self._patience_seconds)
            yield job

    def _connect_events(self, job_id: str, after: int | None) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after is not None else {})
        try:
            with self._http.stream("GET", f"{_path(job_id)}/events", headers=headers) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    raise _NothingFollows
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise _refusal(response)
                yield from read_events(response.iter_bytes())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _post_once(self, path: str, body: Json, idempotency_key: str) -> Json:
        """Post; again, under the same key, when the answer was lost."""
        headers = {"Idempotency-Key": idempotency_key}
        try:
            return self._json("POST", path, json=body, headers=headers)
        except ServerUnreachable as error:
            if isinstance(error.__cause__, httpx.ConnectError):
                raise
            return self._json("POST", path, json=body, headers=headers)

    def _json(self, method: str, path: str, **content: Json) -> Json:
        response = self._send(method, path, **content)
        if not response.is_success:
            raise _refusal(response)
        body = _json_of(response)
        if not body:
            raise ServerUnreachable(f"what answers at {self.url} is not Headrace")
        return body

    def _send(self, method: str, path: str, **content: Json) -> httpx.Response:
        """`content`: httpx's json, params and headers."""
        try:
            return self._http.request(method, path, **content)  # type: ignore[arg-type]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
            return ServerUnreachable(f"'{self.url}' is not the URL of a server")
        if isinstance(error, httpx.ConnectError):
            return ServerUnreachable(f"nothing answers at {self.url}")
        return ServerUnreachable(f"the connection to {self.url} broke: {error or type(error).__name__}")


class _NothingFollows(Exception):
    """The cursor names the last event of a job that has ended."""


class _Retry:
    """Growing pauses until patience runs out. Made anew after every success."""

    def __init__(self, patience_seconds: float) -> None:
        self._give_up_at = time.monotonic() + patience_seconds
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def pause_or_raise(self, error: Exception) -> None:
        """Wait before trying again; raise `error` when it is no passing one or has lasted too long."""
        is_passing = not isinstance(error, RequestRefused) or error.status in (429, 502, 503, 504)
        if not is_passing or time.monotonic() + self._pause_seconds > self._give_up_at:
            raise error
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _refusal(response: httpx.Response) -> RequestRefused:
    body = _json_of(response)
    error = body.get("error")
    if not isinstance(error, dict) or "message" not in error:  # a proxy's answer, not the API's
        message = f"the server answered {response.status_code} {response.reason_phrase}"
        error = {"message": message, "type": "server_error", "param": None, "code": None}
    request_id = response.headers.get("x-request-id")
    return RequestRefused(response.status_code, str(error["message"]), error.get("code"), request_id, {"error": error})


def _json_of(response: httpx.Response) -> Json:
    """The JSON object in a response; empty when there is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
