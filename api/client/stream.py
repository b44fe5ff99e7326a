"""Follows a job over as many connections as it takes: its events, or its text alone."""

from collections.abc import Iterator
from typing import cast
from urllib.parse import quote

import httpx

from api.client.connection import Connection, Retry
from api.client.errors import HeadraceError, ServerUnreachable
from api.client.event_lines import Event, read_events
from api.client.types import Job


class TextStream(Iterator[str]):
    """The pieces of a job's text, one per token, as they are written: each once, none missing.

    Of a job with several outputs these are the first one's; `job` has them all. A job submitted with `stream=False` has
    one piece, at its end.
    """

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self._has_tokens = False
        self._job: Job | None = None

    def __next__(self) -> str:
        for event in self._events:
            if text := self._text_of(event):
                return text
        raise StopIteration

    @property
    def job(self) -> Job:
        """The job as it ended, once the text is read to its end."""
        if self._job is None:
            raise RuntimeError("The job is known when its text has been read to the end.")
        return self._job

    def _text_of(self, event: Event) -> str:
        if event.type == "job.token":
            self._has_tokens = True
            return str(event.data["text"]) if event.data["choice"] == 0 else ""
        if event.is_end:
            self._job = cast(Job, event.data)
            if self._job["output"] is not None and not self._has_tokens:
                return self._job["output"]["text"]
        return ""


def follow(connection: Connection, job_id: str, *, after: int | None = None) -> Iterator[Event]:
    """The job's events beyond number `after`, each once, until its end; a broken connection is made again."""
    retry = Retry(connection)
    while True:
        try:
            for event in _connect(connection, job_id, after, retry):
                after = event.number
                yield event
                if event.is_end:
                    return
            error: HeadraceError = ServerUnreachable(f"{connection.url} ended the stream before the job ended.")
        except _NothingFollows:
            return
        except HeadraceError as broken:
            error = broken
        retry.pause_or_raise(error)


def job_path(job_id: str) -> str:
    """The path of a job."""
    return f"/v1/jobs/{quote(job_id, safe='')}"


class _NothingFollows(Exception):
    """The cursor names the last event of a job that has ended."""


def _connect(connection: Connection, job_id: str, after: int | None, retry: Retry) -> Iterator[Event]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after is not None else {})
    with connection.stream(f"{job_path(job_id)}/events", headers=headers) as response:
        if response.status_code == httpx.codes.NO_CONTENT:
            raise _NothingFollows
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise connection.not_headrace()
        yield from read_events(_noting(response.iter_bytes(), retry))


def _noting(chunks: Iterator[bytes], retry: Retry) -> Iterator[bytes]:
    """`chunks`, each of which, a comment too, shows that the server is there."""
    for chunk in chunks:
        retry.reset()
        yield chunk
