"""The client itself: a call for each thing that the job API does."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack, cast
from uuid import uuid4

from api.client.batch import Batch, Requests, create_batch, find_batch
from api.client.connection import Connection, json_of
from api.client.errors import NoModel, WaitTimeout
from api.client.event_lines import ENDED, Event
from api.client.server import find_server
from api.client.stream import TextStream, follow, job_path
from api.client.types import Job, JobFields, JobFilter, Json, Replay, ReplayFilter

PATIENCE_SECONDS = 60.0  # how long a server may be away; a restart takes a few seconds
FIRST_CONTACT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 60  # of one request for a job's end
POLL_SECONDS = 0.25  # a request can wait for a job's end, but not for its start
PAGE = 100


@dataclass(frozen=True)
class Readiness:
    """What /readyz answers, and the JSON with which it says why."""

    is_ready: bool
    detail: Json


class Headrace:
    """One server and one key. Threads may share it; close it, or use it in a `with` block.

    Without arguments it takes HEADRACE_URL and HEADRACE_API_KEY, else this machine's server and the key in its data
    directory. While the server is away or too busy (429, 502, 503, 504), calls are repeated for `patience_seconds`,
    a server that has never answered is tried for `first_contact_seconds`; no repetition makes a second job. What then
    still fails raises a HeadraceError: ServerUnreachable or RequestRefused.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        first_contact_seconds: float = FIRST_CONTACT_SECONDS,
    ) -> None:
        self._connection = Connection(
            find_server(url, key), patience_seconds=patience_seconds, first_contact_seconds=first_contact_seconds
        )
        self.url = self._connection.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._connection.close()

    def submit(
        self,
        /,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[JobFields],
    ) -> Job:
        """The accepted job, queued: of a prompt (text or token ids) or of messages.

        Without a `model` it runs on the first that is ready. A submit whose answer is lost is sent again under the same
        idempotency key, so that it makes one job; give a key of your own to make it so across restarts of your program.
        """
        body = _sendable({"prompt": prompt, "messages": messages, **fields})
        if "model" not in body:
            body["model"] = self._first_model()
        return cast(Job, self._post("/v1/jobs", body, idempotency_key or str(uuid4())))

    def run(
        self,
        /,
        prompt: str | Sequence[int] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        timeout: float | None = None,
        **fields: Unpack[JobFields],
    ) -> Job:
        """Submit a job and wait for its end: `submit` and `wait` in one."""
        return self.wait(self.submit(prompt, messages=messages, **fields)["id"], timeout=timeout)

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it has ended, however it ended: look at its `status`.

        Raises WaitTimeout when that takes more than `timeout` seconds; the job goes on.
        """
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            seconds_left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            at_most = LONGEST_WAIT_SECONDS if seconds_left is None else min(seconds_left, LONGEST_WAIT_SECONDS)
            job = self._get(job_id, wait_seconds=int(at_most), within_seconds=seconds_left)
            if job["status"] in ENDED:
                return job
            if seconds_left == 0:
                raise WaitTimeout(job)
            if at_most < 1:
                time.sleep(min(at_most, POLL_SECONDS))

    def stream(self, job_id: str) -> TextStream:
        """The job's text as it is written, from its beginning; its `job` says, at the end, how it ended.

        A connection that breaks is made again where it was: no token is missing and none comes twice.
        """
        return TextStream(follow(self._connection, job_id))

    def events(self, job_id: str, *, after: int | None = None) -> Iterator[Event]:
        """The same as events, with token ids, log probabilities and every output; those beyond number `after`."""
        return follow(self._connection, job_id, after=after)

    def get(self, job_id: str) -> Job:
        """The job as it stands."""
        return self._get(job_id)

    def watch(self, job_id: str) -> Iterator[Job]:
        """The job now, then about once a second, the last time when it has ended."""
        job = self._get(job_id)
        yield job
        while job["status"] not in ENDED:
            job = self._get(job_id, wait_seconds=1)
            yield job

    def watch_start(self, job_id: str) -> Iterator[Job]:
        """The job now, then a few times a second, the last time when it is no longer queued."""
        job = self._get(job_id)
        yield job
        while job["status"] == "queued":
            time.sleep(POLL_SECONDS)
            job = self._get(job_id)
            yield job

    def cancel(self, job_id: str) -> Job:
        """The job, ended: cancelled now, or as it had ended before. What it wrote is kept."""
        return cast(Job, self._connection.json("POST", f"{job_path(job_id)}/cancel"))

    def jobs(self, *, limit: int | None = None, **wanted: Unpack[JobFilter]) -> Iterator[Job]:
        """Your jobs that match, newest first, at most `limit`; without their outputs. Pages are fetched as needed."""
        parameters = _sendable(wanted)
        parameters |= {f"metadata[{name}]": value for name, value in parameters.pop("metadata", {}).items()}
        page: Json = {"has_more": True}
        while page["has_more"] and (limit is None or limit > 0):
            size = PAGE if limit is None else min(limit, PAGE)
            page = self._connection.json("GET", "/v1/jobs", params=parameters | {"limit": size})
            yield from page["data"]
            parameters["after"] = page["last_id"]
            limit = None if limit is None else limit - len(page["data"])

    def replay(self, job_id: str) -> Job:
        """The new job that repeats an ended one."""
        return cast(Job, self._post(f"{job_path(job_id)}/replay", {}, str(uuid4())))

    def replay_all(self, **wanted: Unpack[ReplayFilter]) -> Iterator[Replay]:
        """Replay every ended job that matches, dead ones if no `status` is named; what became of each."""
        body, idempotency_key = _sendable(wanted), str(uuid4())
        page: Json = {"has_more": True}
        while page["has_more"]:
            page = self._post("/v1/jobs/replay", body, idempotency_key)
            yield from page["data"]
            body["after"] = page["last_id"]

    def batch(
        self,
        requests: Requests,
        *,
        endpoint: str,
        completion_window: str = "24h",
        metadata: dict[str, str] | None = None,
    ) -> Batch:
        """Upload requests to one endpoint, such as /v1/completions, and run them as a batch.

        `requests`: bodies by their custom_id; or lines of a batch file as dicts, in which `method` and `url` may be
        left out; or the path of such a file.

            batch = client.batch({"a": {"model": "m", "prompt": "Water is"}}, endpoint="/v1/completions")
            for custom_id, result in batch.results():
                print(custom_id, result.body or result.error)
        """
        fields: Json = {"endpoint": endpoint, "completion_window": completion_window, "metadata": metadata or {}}
        return create_batch(self._connection, requests, fields)

    def get_batch(self, batch_id: str) -> Batch:
        """A batch that was made before."""
        return find_batch(self._connection, batch_id)

    def queues(self) -> list[Json]:
        """Depth of each model's tiers."""
        return list(self._connection.json("GET", "/v1/queues")["data"])

    def models(self) -> list[Json]:
        """The served models."""
        return list(self._connection.json("GET", "/v1/models")["data"])

    def readiness(self) -> Readiness:
        """Whether the service can take and run jobs, and what /readyz says about it. Asked once."""
        response = self._connection.send("GET", "/readyz")
        return Readiness(response.is_success, json_of(response))

    def _get(self, job_id: str, *, wait_seconds: int = 0, within_seconds: float | None = None) -> Job:
        """The job as it stands; with `wait_seconds`, as soon as it has ended or after that long."""
        headers = {"Prefer": f"wait={wait_seconds}"} if wait_seconds else {}
        job = self._connection.json("GET", job_path(job_id), headers=headers, within_seconds=within_seconds)
        return cast(Job, job)

    def _post(self, path: str, body: Json, idempotency_key: str) -> Json:
        return self._connection.json("POST", path, json=body, headers={"Idempotency-Key": idempotency_key})

    def _first_model(self) -> str:
        models = self.models()
        if not models:
            raise NoModel
        return str(min(models, key=lambda model: ("ready", "loading", "offline").index(model["status"]))["id"])


def _sendable(fields: Mapping[str, Any]) -> Json:
    """The fields that were given, times as text."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}
