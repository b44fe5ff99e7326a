"""Clients of event streams that cost next to nothing: a socket each, and a look at the numbers of what comes."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Self
from uuid import UUID

from db.ids import public_id

NUMBER = re.compile(rb"\nid: (\d+)\ndata: ")
LONGEST_HEAD = 64  # bytes; of an event, up to its data

OnEvent = Callable[[UUID, int, float], None]  # job, number of the event, time.monotonic() at which it came


class EventClient(asyncio.Protocol):
    """Follows one job from its first event on."""

    def __init__(self, job_id: UUID, key: str, on_event: OnEvent) -> None:
        self._job_id = job_id
        self._key = key
        self._on_event = on_event
        self._pending = b""
        self._transport: asyncio.Transport | None = None
        self.has_begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, job_id: UUID, key: str, on_event: OnEvent) -> Self:
        """Returns once the first event is there."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(job_id, key, on_event), "127.0.0.1", port)
        await client.has_begun
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        path = f"/v1/jobs/{public_id('job_', self._job_id)}/events"
        head = f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self._key}\r\n\r\n"
        transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        now, received, end = time.monotonic(), self._pending + data, 0
        for found in NUMBER.finditer(received):
            self._on_event(self._job_id, int(found[1]), now)
            end = found.end()
            if not self.has_begun.done():
                self.has_begun.set_result(None)
        self._pending = received[max(end, len(received) - LONGEST_HEAD) :]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.has_begun.done():
            self.has_begun.set_exception(error or ConnectionError("closed before the first event"))

    def close(self) -> None:
        """At once, as a client that dies."""
        assert self._transport is not None
        self._transport.abort()
