"""A response's life as events: a fold over its tokens, so that a cursor finds the same events, live and past.

0 created, 1 queued, 2 in_progress, 3 item added, 4 part added, 5 + i the text of token i, then the ends

Where the model may call functions, what a token adds is what its reading adds (`api/responses/items.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from api.chat.choice import Reading
from api.responses.items import ResponseItems
from api.responses.reading import is_complete
from api.responses.view import response_of
from api.sse import frame
from db.job_queries import JobRow
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

    def __init__(self, row: JobRow, reading: Reading) -> None:
        self._row = row
        self._reading = reading
        self._items = ResponseItems(reading)
        self._number = 0  # of the next event

    def opening(self) -> Iterator[Event]:
        """What is so before a worker took the job."""
        queued = response_of(self._row, self._reading, status="queued")
        yield self._event("response.created", response=queued)
        yield self._event("response.queued", response=queued)

    def started(self) -> Iterator[Event]:
        """A worker took it."""
        response = response_of(self._row, self._reading, status="in_progress")
        yield self._event("response.in_progress", response=response)

    def text(self, tokens: Sequence[Token]) -> Iterator[Event]:
        """The next tokens."""
        for kind, said in self._items.push(tokens):
            yield self._event(kind, **said)

    def ended(self, row: JobRow) -> Iterator[Event]:
        """The ends of what was begun, and the response as it ended."""
        for kind, said in self._items.finish(is_complete=is_complete(row)):
            yield self._event(kind, **said)
        response = response_of(row, self._reading)
        yield self._event(TERMINAL[response["status"]], response=response)

    def _event(self, kind: str, **said: Any) -> Event:
        self._number += 1
        return Event({"type": kind, "sequence_number": self._number - 1, **said})
