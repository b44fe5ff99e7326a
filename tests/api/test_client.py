"""The client against a real server that breaks connections on purpose."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from api.client import Client, RequestRefused, ServerUnreachable
from api.event_lines import Event, read_events

Handle = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers each request with the next of the test's functions, and keeps what was asked."""

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = (self.command, self.path, dict(self.headers), self.rfile.read(length))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        self.close_connection = True
        next(self.server.answers)(self)  # type: ignore[attr-defined]

    do_GET = do_POST = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: object, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())


@contextmanager
def server(*answers: Handle, patience_seconds: float = 5.0) -> Iterator[tuple[Client, list[Any]]]:
    """A client of a server that gives `answers` in order, and the list of what it was asked."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked: list[Any] = []
    http.asked, http.answers = asked, iter(answers)  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{http.server_port}/", "hr_key", patience_seconds=patience_seconds) as client:
            yield client, asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def replies(status: int, body: object, **headers: str) -> Handle:
    return lambda handler: handler.answer(status, body, **headers)


def hangs_up(handler: Handler) -> None:
    """Close the connection without an answer."""


def token(number: int) -> bytes:
    return f'event: job.token\nid: {number}\ndata: {{"text":"t{number}"}}\n\n'.encode()


END = b'event: job.succeeded\nid: 4\ndata: {"status":"succeeded"}\n\n'
JOB = {"id": "job_1", "status": "queued"}


def error(code: str) -> dict[str, Any]:
    return {"error": {"message": f"{code}.", "type": "t", "param": None, "code": code}}


def test_events_go_on_from_the_last_one_seen_when_the_connection_breaks() -> None:
    first = replies(200, token(2) + token(3)[:-8])
    with server(first, hangs_up, replies(503, error("away")), replies(200, token(3) + END)) as (client, asked):
        events = list(client.events("job_1"))
    assert [event.number for event in events] == [2, 3, 4]
    assert [headers.get("Last-Event-ID") for _, _, headers, _ in asked] == [None, "2", "2", "2"]


def test_events_of_a_job_that_is_not_there_end_at_once() -> None:
    with server(replies(404, error("job_not_found"))) as (client, asked), pytest.raises(RequestRefused) as refused:
        list(client.events("job_1"))
    assert refused.value.code == "job_not_found" and len(asked) == 1


def test_a_cursor_at_the_end_of_an_ended_job_gives_no_events() -> None:
    with server(lambda handler: handler.send_response(204) or handler.end_headers()) as (client, asked):
        assert list(client.events("job_1", after=4)) == []
    assert asked[0][2]["Last-Event-ID"] == "4"


def test_events_give_up_when_the_server_stays_away() -> None:
    with server(*[hangs_up] * 9, patience_seconds=0.3) as (client, _), pytest.raises(ServerUnreachable, match="broke"):
        list(client.events("job_1"))


def test_a_submit_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    with server(hangs_up, replies(202, JOB)) as (client, asked):
        assert client.submit({"prompt": "a"}) == JOB
    keys = [headers["Idempotency-Key"] for _, _, headers, _ in asked]
    assert keys[0] == keys[1] and asked[0][3] == asked[1][3] == b'{"prompt":"a"}'
    assert asked[0][2]["Authorization"] == "Bearer hr_key"


def test_an_error_carries_the_servers_message_and_request_id() -> None:
    answer = replies(400, error("too_long"), x_request_id="req_1")
    with server(answer) as (client, _), pytest.raises(RequestRefused) as refused:
        client.submit({})
    error_ = refused.value
    assert (str(error_), error_.code, error_.request_id) == ("too_long.", "too_long", "req_1")


def test_an_error_that_is_no_json_still_has_a_message() -> None:
    with server(replies(502, b"<html>")) as (client, _), pytest.raises(RequestRefused, match="502 Bad Gateway"):
        client.get("job_1")


def test_an_answer_from_something_else_says_so() -> None:
    with server(replies(200, b"<html>")) as (client, _), pytest.raises(ServerUnreachable, match="is not Headrace"):
        client.get("job_1")


def test_nothing_listening_says_so() -> None:
    with server() as (client, _):
        url = client.url
    with Client(url, None) as client, pytest.raises(ServerUnreachable, match="nothing answers at http"):
        client.get("job_1")


def test_watching_sits_out_a_restart_and_ends_with_the_job() -> None:
    ended = JOB | {"status": "failed"}
    with server(replies(200, JOB), hangs_up, replies(200, JOB), replies(200, ended)) as (client, asked):
        assert [job["status"] for job in client.watch("job_1")] == ["queued", "queued", "failed"]
    assert [headers.get("Prefer") for _, _, headers, _ in asked] == [None, "wait=1", "wait=1", "wait=1"]


def test_readiness_is_told_with_its_reason() -> None:
    with server(replies(503, {"postgres": "away"}), replies(200, {})) as (client, _):
        not_ready = client.readiness()
        assert (not_ready.is_ready, not_ready.detail) == (False, {"postgres": "away"})
        assert client.readiness().is_ready


def test_events_survive_any_cut_into_chunks_and_any_character() -> None:
    value = {"text": "line\u2028separator \x85 \u00e9"}
    frame = f"event: job.token\r\nid: 7\r\ndata: {json.dumps(value, ensure_ascii=False)}\r\n\r\n"
    data = f": keepalive\n\nretry: 5\n\n{frame}".encode()
    for size in range(1, len(data)):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(read_events(chunks)) == [Event(7, "job.token", value)]


def test_several_data_lines_are_joined() -> None:
    assert [event.data for event in read_events([b'id: 0\ndata: {"a":\ndata: 1}\n\nid: 1\ndata: cut'])] == [{"a": 1}]
