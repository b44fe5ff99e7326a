"""A TCP way to a store's socket whose connections can be cut half open, as a failing network leaves them."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CHUNK = 65536


@dataclass(eq=False)
class Pair:
    """One connection: the client's side and the store's."""

    client: asyncio.StreamWriter
    store: asyncio.StreamWriter
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Link:
    """Listens on a loopback port and forwards to a Unix socket. Lives on the event loop that opened it."""

    def __init__(self, name: str, socket_path: Path) -> None:
        self.name = name
        self._socket_path = socket_path
        self._pairs: set[Pair] = set()
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the port and every connection."""
        self._server.close()
        for pair in list(self._pairs):
            self._end(pair)

    async def cut(self, seconds: float) -> int:
        """Take the present connections away from the store at once, and from their clients only after `seconds`.

        Until then what a client sends is lost, and no answer comes. Returns how many there were.
        """
        pairs = list(self._pairs)
        for pair in pairs:
            for task in pair.tasks:
                task.cancel()
            pair.store.transport.abort()
        await asyncio.sleep(seconds)
        for pair in pairs:
            self._end(pair)
        return len(pairs)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            store_reader, store_writer = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            writer.transport.abort()
            return
        pair = Pair(writer, store_writer)
        self._pairs.add(pair)
        for source, sink in ((reader, store_writer), (store_reader, writer)):
            pair.tasks.append(asyncio.create_task(self._forward(pair, source, sink)))

    async def _forward(self, pair: Pair, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                sink.write(data)
                await sink.drain()
        self._end(pair)

    def _end(self, pair: Pair) -> None:
        if pair in self._pairs:
            self._pairs.discard(pair)
            pair.client.transport.abort()
            pair.store.transport.abort()
