"""Webhook endpoints in trouble of every kind, until they are healed. Each counts what it took, by event."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TRICKLE_SECONDS = 0.5  # between two bytes of an answer


class Trouble(StrEnum):
    """What is wrong with an endpoint."""

    NONE = "none"
    DOWN = "down"  # nobody listens
    SLOW = "slow"  # takes the event, after a while
    REDIRECT = "301"
    GONE = "410"
    BUSY = "429"
    TRICKLING = "trickling"  # answers a byte at a time, and is never done


class Endpoint:
    """One of them. `arrivals` and `taken` are written by its own threads, and read when they are quiet."""

    def __init__(self, trouble: Trouble, *, slow_seconds: float) -> None:
        self.trouble = trouble
        self.slow_seconds = slow_seconds
        self.healed = threading.Event()
        self.arrivals: dict[str, float] = {}  # event id to Unix time, of its first attempt
        self.taken: Counter[str] = Counter()  # event id to how often it was answered with success
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self), bind_and_activate=False)
        self._server.daemon_threads, self._server.request_queue_size = True, 128
        self._server.server_bind()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        if trouble != Trouble.DOWN:
            self._listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def heal(self) -> None:
        """End the trouble; what waits for an answer gets it."""
        was, self.trouble = self.trouble, Trouble.NONE
        self.healed.set()
        if was == Trouble.DOWN:
            self._listen()

    def close(self) -> None:
        self.healed.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def arrive(self, event_id: str) -> None:
        with self._lock:
            self.arrivals.setdefault(event_id, time.time())

    def take(self, event_id: str) -> None:
        with self._lock:
            self.taken[event_id] += 1

    def _listen(self) -> None:
        self._server.server_activate()
        self._thread.start()


def _handler_of(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            event_id, trouble = self.headers["webhook-id"], endpoint.trouble
            endpoint.arrive(event_id)
            if trouble == Trouble.TRICKLING:
                self._trickle()
            elif trouble in (Trouble.REDIRECT, Trouble.GONE, Trouble.BUSY):
                self._answer(int(trouble))
            else:
                if trouble == Trouble.SLOW:
                    endpoint.healed.wait(endpoint.slow_seconds)
                endpoint.take(event_id)
                self._answer(204)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            for name, value in (("content-length", "0"), ("retry-after", "1"), ("location", "https://elsewhere.test/")):
                self.send_header(name, value)
            self.end_headers()

        def _trickle(self) -> None:
            for byte in b"HTTP/1.1 204 No Content" + b" " * 1000:
                if endpoint.healed.wait(TRICKLE_SECONDS):
                    return  # in the middle of it
                try:
                    self.wfile.write(bytes([byte]))
                except OSError:
                    return  # the sender has given up

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def endpoints(troubles: Sequence[Trouble], *, slow_seconds: float) -> Iterator[list[Endpoint]]:
    """Running endpoints, one for each trouble."""
    with ExitStack() as stack:
        made = [Endpoint(trouble, slow_seconds=slow_seconds) for trouble in troubles]
        for endpoint in made:
            stack.callback(endpoint.close)
        yield made
