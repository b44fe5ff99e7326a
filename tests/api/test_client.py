"""The client against a real server that breaks connections on purpose."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from api.client import Headrace, NoModel, RequestRefused, ServerUnreachable, WaitTimeout
from api.client.event_lines import Event, read_events

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
def server(*answers: Handle, patience_seconds: float = 5.0) -> Iterator[tuple[Headrace, list[Any]]]:
    """A client of a server that gives `answers` in order, and the list of what it was asked."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked: list[Any] = []
    http.asked, http.answers = asked, iter(answers)  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        with Headrace(f"http://127.0.0.1:{http.server_port}/", "hr_key", patience_seconds=patience_seconds) as client:
            yield client, asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def replies(status: int, body: object, **headers: str) -> Handle:
    return lambda handler: handler.answer(status, body, **headers)


def streams(body: bytes) -> Handle:
    return replies(200, body, content_type="text/event-stream; charset=utf-8")


def hangs_up(handler: Handler) -> None:
    """Close the connection without an answer."""


def token(number: int) -> bytes:
    return f'event: job.token\nid: {number}\ndata: {{"text":"t{number}"}}\n\n'.encode()


END = b'event: job.succeeded\nid: 4\ndata: {"status":"succeeded"}\n\n'
JOB = {"id": "job_1", "status": "queued"}


def error(code: str) -> dict[str, Any]:
    return {"error": {"message": f"{code}.", "type": "t", "param": None, "code": code}}


def test_events_go_on_from_the_last_one_seen_when_the_connection_breaks() -> None:
    first = streams(token(2) + token(3)[:-8])
    with server(first, hangs_up, replies(503, error("away")), streams(token(3) + END)) as (client, asked):
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


def test_events_go_on_for_as_long_as_every_connection_brings_something() -> None:
    pieces = [streams(token(2)), *[streams(b": keepalive\n\n")] * 5, streams(token(3) + END)]
    with server(*pieces, patience_seconds=0.3) as (client, _):
        assert [event.number for event in client.events("job_1")] == [2, 3, 4]


def test_events_give_up_when_the_server_stays_away() -> None:
    with server(*[hangs_up] * 9, patience_seconds=0.3) as (client, _), pytest.raises(ServerUnreachable, match="broke"):
        list(client.events("job_1"))


def test_a_page_that_is_no_event_stream_is_told_at_once() -> None:
    with server(replies(200, b"<html>")) as (client, _), pytest.raises(ServerUnreachable, match="is not Headrace"):
        list(client.events("job_1"))


def test_a_submit_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    with server(hangs_up, hangs_up, replies(202, JOB)) as (client, asked):
        assert client.submit("a", model="m") == JOB
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in asked}) == 1
    assert [json.loads(body) for _, _, _, body in asked] == [{"prompt": "a", "model": "m"}] * 3
    assert asked[0][2]["Authorization"] == "Bearer hr_key"


def test_each_submit_has_a_key_of_its_own_unless_one_is_given() -> None:
    with server(*[replies(202, JOB)] * 3) as (client, asked):
        client.submit("a", model="m")
        client.submit("a", model="m")
        client.submit("a", model="m", idempotency_key="mine")
    first, second, mine = (headers["Idempotency-Key"] for _, _, headers, _ in asked)
    assert first != second and mine == "mine"


def test_a_submit_waits_where_the_server_is_too_busy_or_away() -> None:
    busy, away = replies(429, error("queue_full"), Retry_After="0.2"), replies(503, error("service_unavailable"))
    with server(busy, away, replies(202, JOB)) as (client, asked):
        assert client.submit("a", model="m") == JOB
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in asked}) == 1


@pytest.mark.parametrize(
    "answer",
    [
        replies(429, error("queue_full"), Retry_After="3600"),
        replies(429, error("request_too_large"), x_should_retry="false"),
        replies(422, error("idempotency_mismatch")),
    ],
)
def test_a_submit_is_refused_at_once_where_waiting_would_not_help(answer: Handle) -> None:
    with server(answer) as (client, asked), pytest.raises(RequestRefused):
        client.submit("a", model="m")
    assert len(asked) == 1


def test_a_submit_without_a_model_takes_the_first_that_is_ready() -> None:
    models = [{"id": "a", "status": "loading"}, {"id": "b", "status": "ready"}, {"id": "c", "status": "ready"}]
    with server(replies(200, {"data": models}), replies(202, JOB), replies(200, {"data": []})) as (client, asked):
        client.submit(messages=[{"role": "user", "content": "a"}], start_by=datetime(2026, 1, 31, 18, tzinfo=UTC))
        with pytest.raises(NoModel, match="`headrace status`"):
            client.submit("a")
    assert json.loads(asked[1][3]) == {
        "messages": [{"role": "user", "content": "a"}],
        "start_by": "2026-01-31T18:00:00+00:00",
        "model": "b",
    }


def test_an_error_carries_the_servers_message_and_request_id() -> None:
    answer = replies(400, error("too_long"), x_request_id="req_1")
    with server(answer) as (client, _), pytest.raises(RequestRefused) as refused:
        client.submit("a", model="m")
    error_ = refused.value
    assert (str(error_), error_.code, error_.request_id) == ("too_long.", "too_long", "req_1")


def test_an_error_that_is_no_json_still_has_a_message() -> None:
    with server(replies(500, b"<html>")) as (client, _), pytest.raises(RequestRefused, match="500 Internal Server"):
        client.get("job_1")


def test_a_wrong_key_comes_with_the_way_out() -> None:
    way_out = "Give another key with --key, key= or HEADRACE_API_KEY"
    with server(replies(401, error("no_key"))) as (client, _), pytest.raises(RequestRefused, match=way_out):
        client.get("job_1")


def test_an_answer_from_something_else_says_so() -> None:
    with server(replies(200, b"<html>")) as (client, _), pytest.raises(ServerUnreachable, match="is not Headrace"):
        client.get("job_1")


def test_nothing_listening_says_so() -> None:
    with server() as (client, _):
        url = client.url
    says = r"Nothing answers at http.*`headrace up`.*HEADRACE_URL"
    with Headrace(url, first_contact_seconds=0.2) as client, pytest.raises(ServerUnreachable, match=says):
        client.get("job_1")


def test_an_address_that_is_none_is_told_at_once() -> None:
    with Headrace("ftp://mill", "hr_key") as client, pytest.raises(ServerUnreachable, match="is not the URL of a serv"):
        client.get("job_1")


def test_watching_sits_out_a_restart_and_ends_with_the_job() -> None:
    ended = JOB | {"status": "failed"}
    with server(replies(200, JOB), hangs_up, replies(200, JOB), replies(200, ended)) as (client, asked):
        assert [job["status"] for job in client.watch("job_1")] == ["queued", "queued", "failed"]
    assert [headers.get("Prefer") for _, _, headers, _ in asked] == [None, "wait=1", "wait=1", "wait=1"]


def test_a_wait_with_a_timeout_does_not_sit_out_a_longer_absence() -> None:
    with server(replies(200, JOB), *[hangs_up] * 99, patience_seconds=60.0) as (client, asked):
        client.get("job_1")
        with pytest.raises(ServerUnreachable):
            client.wait("job_1", timeout=0.4)
    assert 2 < len(asked) < 7, "pauses double from 0.1 s on"


def test_a_wait_for_a_batch_ends_with_its_timeout_also_while_the_server_is_away() -> None:
    state = {"id": "batch_1", "status": "in_progress"}
    with server(replies(200, state), *[hangs_up] * 99, patience_seconds=60.0) as (client, asked):
        batch = client.get_batch("batch_1")
        with pytest.raises(WaitTimeout, match="batch_1 is still in_progress"):
            batch.wait(timeout=0.4)
    assert 2 < len(asked) < 7, "pauses double from 0.1 s on"


def test_a_wait_for_a_batch_that_nobody_knows_says_so_whatever_its_timeout() -> None:
    state = {"id": "batch_1", "status": "in_progress"}
    with server(replies(200, state), replies(404, error("batch_not_found"))) as (client, _):
        batch = client.get_batch("batch_1")
        with pytest.raises(RequestRefused, match="batch_not_found"):
            batch.wait(timeout=0.4)


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
