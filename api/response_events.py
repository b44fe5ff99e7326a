"""A response's life as events: a fold over its tokens, so that a cursor finds the same events, live and past.

0 created, 1 queued, 2 in_progress, 3 item added, 4 part added, 5 + i the text of token i, then the ends
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from api.response_logprobs import ResponseLogprobs
from api.response_output import message_begun, message_id, text_part
from api.response_view import response_of
from api.sse import frame
from db.job_queries import JobRow
from db.models import Status
from db.stream import Token

TERMINAL = {  # by the response's status
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.cancelled",
}


@dataclass(frozen=True)
class Event:
    """One event; `data` has its type and number as well."""

    data: dict[str, Any]

    @property
    def number(self) -> int:
        """From 0, without a gap."""
        number: int = self.data["sequence_number"]
        return number

    def frame(self) -> bytes:
        """As it is sent: without an id, which the OpenAI clients take for an event of its own."""
        return frame(self.data, event=self.data["type"])


class ResponseEvents:
    """Makes the events of one response, in order, from what `follow` tells of its job."""

    def __init__(self, row: JobRow, logprobs: ResponseLogprobs | None) -> None:
        self._row = row
        self._logprobs = logprobs
        self._number = 0  # of the next event
        self._is_open = False  # the message was begun

    def opening(self) -> Iterator[Event]:
        """What is so before a worker took the job."""
        queued = response_of(self._row, status="queued")
        yield self._event("response.created", response=queued)
        yield self._event("response.queued", response=queued)

    def started(self) -> Iterator[Event]:
        """A worker took it."""
        yield self._event("response.in_progress", response=response_of(self._row, status="in_progress"))

    def text(self, tokens: list[Token]) -> Iterator[Event]:
        """The next tokens, each an event; its text may be empty."""
        yield from self._open()
        for token in tokens:
            told = [] if self._logprobs is None else self._logprobs.of([token])
            yield self._part_event("response.output_text.delta", delta=token.text, logprobs=told)

    def ended(self, row: JobRow) -> Iterator[Event]:
        """The ends of what was begun, and the response as it ended."""
        response = response_of(row, logprobs=self._logprobs)
        if row.job.status == Status.SUCCEEDED:
            yield from self._open()
        if self._is_open:
            item = response["output"][0]
            (part,) = item["content"]
            yield self._part_event("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._part_event("response.content_part.done", part=part)
            yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(TERMINAL[response["status"]], response=response)

    def _open(self) -> Iterator[Event]:
        if not self._is_open:
            self._is_open = True
            yield self._event("response.output_item.added", output_index=0, item=message_begun(self._row.job.id))
            yield self._part_event("response.content_part.added", part=text_part(""))

    def _part_event(self, kind: str, **said: Any) -> Event:
        place = {"item_id": message_id(self._row.job.id), "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **said)

    def _event(self, kind: str, **said: Any) -> Event:
        self._number += 1
        return Event({"type": kind, "sequence_number": self._number - 1, **said})
