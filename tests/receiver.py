"""A webhook endpoint on loopback: it keeps what it got, and answers what the test says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from ssl import SSLContext


@dataclass(frozen=True)
class Delivery:
    """One POST as it arrived."""

    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes


@dataclass(frozen=True)
class Say:
    """One answer."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Receiver:
    """`got` delivers what arrives, in order; `answer` may wait on an event of the test's to be a slow endpoint."""

    url: str
    port: int
    got: "Queue[Delivery]"
    answer: Callable[[Delivery], Say]

    def next(self) -> Delivery:
        """The next delivery; fails the test when none comes."""
        return self.got.get(timeout=20)


@contextmanager
def receiver(
    answer: Callable[[Delivery], Say] = lambda delivery: Say(), *, tls: SSLContext | None = None
) -> Iterator[Receiver]:
    """A running endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            delivery = Delivery(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            endpoint.got.put(delivery)
            say = endpoint.answer(delivery)
            self.send_response(say.status)
            for name, value in ({"content-length": str(len(say.body))} | say.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(say.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    port = server.server_address[1]
    endpoint = Receiver(f"{'https' if tls else 'http'}://127.0.0.1:{port}", port, Queue(), answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
