"""Reading server-sent events in tests."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """One event; `number` is its id."""

    name: str | None
    number: int | None
    data: Any


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a reply, as they come; comments are left out."""
    name, number, data = None, None, None
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if line == "" and data is not None:
            yield Event(name, number, data if data == "[DONE]" else json.loads(data))
            name, number, data = None, None, None
        elif field == "event":
            name = value
        elif field == "id":
            number = int(value)
        elif field == "data":
            data = value
