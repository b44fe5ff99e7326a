"""A client of an event stream that has a socket of its own and reads only when it is asked to."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from api.client.event_lines import Event, read_events
from tests.api.serving import KEY

RECEIVE_BYTES = 8192  # of the socket: what it holds of a stream that nobody reads


class Follower:
    """Follows one job. Between two calls it reads nothing, but for what two small buffers take."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._events = self._read()

    async def next(self) -> Event:
        """The next event."""
        return await anext(self._events)

    async def rest(self) -> list[Event]:
        """All that is to come, until the server closes the stream."""
        return [event async for event in self._events]

    async def _read(self) -> AsyncIterator[Event]:
        pending = b""
        while size := int(await self._reader.readline(), 16):
            pending += (await self._reader.readexactly(size + 2))[:size]  # a chunk ends with CR LF
            whole, end, pending = pending.rpartition(b"\n\n")
            for event in read_events([whole + end]):
                yield event


@asynccontextmanager
async def follow(url: str, job_id: str, *, cursor: int = -1) -> AsyncIterator[Follower]:
    """A follower from after the event `cursor` on, which has been answered. It leaves without a word."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=RECEIVE_BYTES)
    last_event = "" if cursor < 0 else f"Last-Event-ID: {cursor}\r\n"
    head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n{last_event}\r\n"
    writer.write(head.encode())
    status, *_ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    assert status.split()[1] == b"200", status
    try:
        yield Follower(reader)
    finally:
        writer.transport.abort()
