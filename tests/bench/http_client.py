"""A client that costs little beside what it measures: one keep-alive connection, requests made by hand."""

import asyncio
import json
from typing import Any, Self

END_OF_CHUNKS = b"0\r\n\r\n"


class HttpClient:
    """One connection to the API. One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: dict[str, Any], key: str) -> int:
        """Send it, read the whole answer, return its status."""
        return (await self.call("POST", path, key, body))[0]

    async def call(self, method: str, path: str, key: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Send it, and return the status and the whole answer."""
        status, headers = await self._send(method, path, body, key)
        length = next(line for line in headers if line.lower().startswith(b"content-length:"))
        return status, await self._reader.readexactly(int(length.partition(b":")[2]))

    async def first_event(self, path: str, body: dict[str, Any], key: str) -> float:
        """Send it, and return the event loop's time at which the first event of the answer arrived."""
        status, _ = await self._send("POST", path, body, key)
        assert status == 200, f"{path} answered {status}"
        await self._reader.readuntil(b"data:")
        arrived_at = asyncio.get_running_loop().time()
        await self._reader.readuntil(END_OF_CHUNKS)
        return arrived_at

    def close(self) -> None:
        self._writer.close()

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, key: str) -> tuple[int, list[bytes]]:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        return int(lines[0].split()[1]), lines[1:]
