"""One attempt at a time: what is signed and sent, and what each answer is called."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from standardwebhooks import Webhook

from tests.receiver import Delivery, Receiver, Say, receiver
from tests.resolver import resolve_all_to
from tests.workers.webhook_attempt import BODY, SECRET, send
from workers import webhooks
from workers.webhooks import MAX_EXCERPT_CHARS, retry_after, storable

CERTIFICATE = Path(__file__).with_name("hooks_test.pem")  # self-signed, for hooks.test


def test_receiver_verifies_the_signature_with_the_standard_webhooks_library() -> None:
    with receiver() as endpoint:
        reply = send(endpoint.url + "/hook?x=1")
        delivery = endpoint.next()
    assert (reply.status_code, reply.error) == (204, None)
    assert delivery.path == "/hook?x=1"
    assert delivery.headers["content-type"] == "application/json"
    assert Webhook(SECRET).verify(delivery.body, delivery.headers) == json.loads(BODY)


def test_unchanged_openai_client_unwraps_the_event() -> None:
    with receiver() as endpoint:
        send(endpoint.url)
        delivery = endpoint.next()
    client = OpenAI(api_key="unused", webhook_secret=SECRET)
    event = client.webhooks.unwrap(delivery.body.decode(), delivery.headers)
    assert str(event.type) == "job.succeeded"  # a type the SDK does not know passes through


def test_repeated_attempt_has_the_same_id_and_bytes_and_a_fresh_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=60)

    with receiver() as endpoint:
        send(endpoint.url)
        monkeypatch.setattr(webhooks, "datetime", Later)
        send(endpoint.url)
        first, second = endpoint.next(), endpoint.next()
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "evt_1"
    assert int(second.headers["webhook-timestamp"]) >= int(first.headers["webhook-timestamp"]) + 60
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    Webhook(SECRET).verify(second.body, second.headers)


def test_redirect_is_not_followed_and_its_reason_says_what_to_do() -> None:
    with receiver() as target:
        with receiver(lambda delivery: Say(301, {"location": target.url})) as endpoint:
            reply = send(endpoint.url)
        assert target.got.empty()
    assert reply.status_code == 301
    assert reply.error == f"answered 301, a redirect to {target.url}; redirects are not followed, use the final URL"
    assert not reply.is_refused


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with receiver() as endpoint:
        assert send(endpoint.url).error is None


@pytest.fixture
def tls_receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """An https endpoint for hooks.test, trusted; every name resolves to it."""
    resolve_all_to(monkeypatch, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    webhooks._ssl_context.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with receiver(tls=context) as endpoint:
        yield endpoint
    webhooks._ssl_context.cache_clear()


def test_certificate_is_verified_for_the_name_and_not_for_the_address(tls_receiver: Receiver) -> None:
    assert send(f"https://hooks.test:{tls_receiver.port}/").error is None
    wrong = send(f"https://other.test:{tls_receiver.port}/")
    assert wrong.error is not None and "certificate" in wrong.error.lower()
    assert tls_receiver.next().headers["host"] == f"hooks.test:{tls_receiver.port}"
    assert tls_receiver.got.empty()


def test_endpoint_that_never_answers_is_given_up_after_the_timeout() -> None:
    released = threading.Event()

    def answer(delivery: Delivery) -> Say:
        released.wait(20)
        return Say()

    with receiver(answer) as endpoint:
        reply = send(endpoint.url, timeout_seconds=0.2)
        released.set()
    assert (reply.status_code, reply.error) == (None, "no answer within 0.2 s")


def test_endpoint_that_drips_its_headers_is_held_to_the_same_timeout() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            while not stop.wait(0.02):
                try:
                    connection.send(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        # One byte every 20 ms keeps any timeout per read alive for ever.
        reply = send(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_seconds=0.3)
    finally:
        stop.set()
        thread.join()
        listener.close()
    assert reply.error is not None and reply.status_code is None


def test_long_answer_is_cut_to_an_excerpt_that_postgres_can_hold() -> None:
    with receiver(lambda delivery: Say(500, body=b"broken\x00\xff" + b"x" * 1_000_000)) as endpoint:
        reply = send(endpoint.url)
    assert reply.error == "answered 500"
    assert reply.excerpt is not None and len(reply.excerpt) == MAX_EXCERPT_CHARS
    assert reply.excerpt.startswith("broken��x")


def test_answer_whose_body_breaks_off_counts_by_its_status() -> None:
    with receiver(lambda delivery: Say(200, {"content-length": "100"}, b"short")) as endpoint:
        reply = send(endpoint.url)
    assert (reply.status_code, reply.error, reply.excerpt) == (200, None, "short")


def test_refused_connection_is_a_failed_attempt_with_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reply = send(f"http://127.0.0.1:{port}/")
    assert reply.status_code is None and not reply.is_refused
    assert reply.error is not None and reply.error.startswith("ConnectError")


def test_reason_is_text_that_postgres_can_hold() -> None:
    assert storable("a\x00b\ud800c") == "a\N{REPLACEMENT CHARACTER}b?c"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        (format_datetime(datetime(2026, 1, 1, 0, 2, tzinfo=UTC), usegmt=True), 120.0),
        (format_datetime(datetime(2025, 1, 1, tzinfo=UTC), usegmt=True), 0.0),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("-5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_read_in_seconds_and_as_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(httpx.Headers({"retry-after": value}), now=datetime(2026, 1, 1, tzinfo=UTC)) == seconds
