"""Batches for the client: requests go up as a file, results come back by custom_id, also while the batch runs."""

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from api.client.connection import Connection, Retry
from api.client.errors import BatchFailed, HeadraceError, WaitTimeout
from api.client.event_lines import read_lines
from api.client.types import BatchState, Json

ENDED = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS = 1.0
# Between two looks into a growing file, which is read from its beginning, is some times the time that a look took.
LOOK_FACTOR, LONGEST_PAUSE_SECONDS = 4.0, 30.0
RECENT = 100  # batches among which one whose answer was lost is looked for

Requests = Mapping[str, Mapping[str, Any]] | Iterable[Mapping[str, Any]] | str | os.PathLike[str]


@dataclass(frozen=True)
class BatchResult:
    """What became of one request: a body like that of its endpoint, or an error with its code and message."""

    custom_id: str
    status_code: int | None  # None: it did not run, because the batch was cancelled or expired
    body: Json | None
    error: Json | None

    @property
    def is_success(self) -> bool:
        """Whether there is a body."""
        return self.error is None


class Batch:
    """A batch on the server. `state` is what was known of it when it was last looked at."""

    def __init__(self, connection: Connection, state: BatchState) -> None:
        self.id = state["id"]
        self.state = state
        self._connection = connection
        self._path = _path(state["id"])

    def refresh(self) -> BatchState:
        """The batch as it stands: its `status`, and exact `request_counts`."""
        self.state = cast(BatchState, self._connection.json("GET", self._path))
        return self.state

    def wait(self, *, timeout: float | None = None) -> BatchState:
        """The batch once it has ended, however it ended.

        Raises WaitTimeout when that takes more than `timeout` seconds, or the server is away for the rest of them; the
        batch goes on.
        """
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            seconds_left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            if self._look(seconds_left)["status"] in ENDED:
                return self.state
            if seconds_left == 0:
                raise WaitTimeout(self.state)
            time.sleep(POLL_SECONDS if seconds_left is None else min(POLL_SECONDS, seconds_left))

    def results(self) -> Iterator[tuple[str, BatchResult]]:
        """Each request's custom_id and result, as they come, until all have ended; `dict(batch.results())` has all.

        Not in the order of the requests. Raises BatchFailed when the input was found wrong.
        """
        for line in self.lines():
            yield line["custom_id"], _result_of(line)

    def lines(self) -> Iterator[Json]:
        """The same as the lines of the batch's output and error files."""
        seen: dict[str, set[str]] = {"completed": set(), "failed": set()}
        while True:
            status, looked_at = self.refresh()["status"], time.monotonic()
            if status == "failed":
                raise BatchFailed(self.state)
            yield from self._new_lines(self.state["output_file_id"], seen["completed"], "completed")
            yield from self._new_lines(self.state["error_file_id"], seen["failed"], "failed")
            if status in ENDED:
                return
            looked_for = time.monotonic() - looked_at
            time.sleep(min(max(POLL_SECONDS, LOOK_FACTOR * looked_for), LONGEST_PAUSE_SECONDS))

    def cancel(self) -> BatchState:
        """End the batch; what has ended stays in its results. One that has ended stays as it is."""
        self.state = cast(BatchState, self._connection.json("POST", f"{self._path}/cancel"))
        return self.state

    def _look(self, seconds_left: float | None) -> BatchState:
        """`refresh` for somebody who has so much time and, where that is less, not the client's patience."""
        try:
            self.state = cast(BatchState, self._connection.json("GET", self._path, within_seconds=seconds_left))
        except HeadraceError as error:
            if seconds_left is None or seconds_left > self._connection.patience_seconds or not error.is_passing:
                raise
            raise WaitTimeout(self.state) from error
        return self.state

    def _new_lines(self, file_id: str | None, seen: set[str], count: str) -> Iterator[Json]:
        """Lines of the file that are not `seen` yet; none are looked for where the batch's `count` says so."""
        if file_id is None or len(seen) >= cast(Json, self.state["request_counts"])[count]:
            return
        for line in _download(self._connection, file_id):
            if line["custom_id"] not in seen:
                seen.add(line["custom_id"])
                yield line


def create_batch(connection: Connection, requests: Requests, fields: Json) -> Batch:
    """Upload the requests and make a batch of them, with `fields` of POST /v1/batches."""
    with _open(requests, fields["endpoint"]) as source:
        files = {"file": ("requests.jsonl", source)}
        file = connection.json("POST", "/v1/files", data={"purpose": "batch"}, files=files)
    return Batch(connection, _create_once(connection, fields | {"input_file_id": file["id"]}))


def find_batch(connection: Connection, batch_id: str) -> Batch:
    """A batch that was made before."""
    return Batch(connection, cast(BatchState, connection.json("GET", _path(batch_id))))


def _create_once(connection: Connection, body: Json) -> BatchState:
    """The batch, made. The API knows no idempotency key here: before asking again, look for the batch of our file."""
    retry = Retry(connection)
    while True:
        try:
            return cast(BatchState, connection.json_once("POST", "/v1/batches", json=body))
        except HeadraceError as error:
            retry.pause_or_raise(error)
            # Behind a 502 or 504 of a proxy there may be a batch, as behind an answer that was lost.
            recent = connection.json("GET", "/v1/batches", params={"limit": RECENT})["data"]
            for batch in recent:
                if batch["input_file_id"] == body["input_file_id"]:
                    return cast(BatchState, batch)


@contextmanager
def _open(requests: Requests, endpoint: str) -> Iterator[BinaryIO]:
    """The requests as a file of lines, in bounded memory."""
    if isinstance(requests, (str, os.PathLike)):
        with Path(requests).open("rb") as file:
            yield file
        return
    if isinstance(requests, Mapping):
        requests = ({"custom_id": custom_id, "body": body} for custom_id, body in requests.items())
    with tempfile.TemporaryFile() as written:
        for line in requests:
            whole = {"method": "POST", "url": endpoint} | dict(line)
            written.write(json.dumps(whole).encode() + b"\n")
        written.seek(0)
        yield cast(BinaryIO, written)


def _download(connection: Connection, file_id: str) -> Iterator[Json]:
    """The lines of a file. After a break it is read from its beginning again."""
    retry, furthest = Retry(connection), 0
    while True:
        try:
            with connection.stream(f"/v1/files/{quote(file_id, safe='')}/content") as response:
                for number, line in enumerate(read_lines(response.iter_bytes()), start=1):
                    if number > furthest:
                        furthest = number
                        retry.reset()
                    yield json.loads(line)
            return
        except HeadraceError as error:
            retry.pause_or_raise(error)


def _path(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}"


def _result_of(line: Json) -> BatchResult:
    response, error = line["response"], line["error"]
    if response is None:
        return BatchResult(line["custom_id"], None, None, error)
    status_code, body = response["status_code"], response["body"]
    if status_code >= 400:
        return BatchResult(line["custom_id"], status_code, None, body["error"])
    return BatchResult(line["custom_id"], status_code, body, None)
