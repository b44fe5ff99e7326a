"""What lies between a client and its server: it tells what was asked, and can lose answers or give others."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Queue


class LossyProxy:
    """Passes bytes on, a connection at a time on two threads. Requests are small enough to come in one piece."""

    def __init__(self, port: int) -> None:
        self.heard: Queue[bytes] = Queue()  # the beginning of every request, "GET /v1/jobs/..."
        self._port = port
        self._to_lose: Counter[bytes] = Counter()  # how many answers to requests that begin so
        self._instead: dict[bytes, bytes] = {}  # what those are answered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, beginning: bytes, *, times: int, status: int | None = None) -> None:
        """Let the server do what it is asked, and break the connection when it answers, or after answering `status`."""
        answer = b"" if status is None else b"HTTP/1.1 %d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status
        self._instead[beginning] = answer
        self._to_lose[beginning] = times

    def wait_for(self, beginning: bytes) -> None:
        """Until such a request has come; the test's timeout is the limit."""
        while not self.heard.get().startswith(beginning):
            pass

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
            asked: list[bytes] = []
            threading.Thread(target=self._ask, args=(client, server, asked), daemon=True).start()
            while answer := server.recv(65536):
                lost = next((each for each in self._to_lose if asked[-1].startswith(each)), b"")
                if self._to_lose[lost] > 0:
                    self._to_lose[lost] -= 1
                    client.sendall(self._instead[lost])
                    break
                client.sendall(answer)
            client.shutdown(socket.SHUT_RDWR)

    def _ask(self, client: socket.socket, server: socket.socket, asked: list[bytes]) -> None:
        with suppress(OSError):
            while request := client.recv(65536):
                if request.startswith((b"GET ", b"POST ")):
                    asked.append(request)
                    self.heard.put(request)
                server.sendall(request)
            server.shutdown(socket.SHUT_WR)


@contextmanager
def lossy_proxy(port: int) -> Iterator[LossyProxy]:
    """A proxy for the time of the block."""
    proxy = LossyProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
