"""Reads a job's server-sent events out of the bytes of an HTTP response."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

ENDED = ("succeeded", "failed", "cancelled", "expired", "dead")


@dataclass(frozen=True)
class Event:
    """One event of a job: its sequence number, its type, and the JSON it carries."""

    number: int
    type: str
    data: dict[str, Any]

    @property
    def is_end(self) -> bool:
        """Whether this is the job's last event; its data is the whole job."""
        return self.type.removeprefix("job.") in ENDED


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events in `chunks`. Comments and frames without data are skipped; a frame cut off at the end is dropped."""
    fields: dict[str, str] = {}
    for line in read_lines(chunks):
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields['data']}\n{value}" if name == "data" and "data" in fields else value
            continue
        if "data" in fields and "id" in fields:
            yield Event(int(fields["id"]), fields.get("event", "message"), json.loads(fields["data"]))
        fields = {}


def read_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines ended by LF or CR LF alone: `httpx` and `str.splitlines` also cut at U+2028 and others, inside the JSON."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
