"""One attempt at a time: what is signed, where it may go, and what each answer is called."""

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from standardwebhooks import Webhook

from db.addresses import is_public
from tests.receiver import Delivery, Receiver, Say, receiver
from workers import webhooks
from workers.webhooks import MAX_EXCERPT_CHARS, Reply, post, retry_after, storable

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
BODY = json.dumps({"type": "job.succeeded", "data": {"id": "job_1", "text": "naïve ✓"}}, ensure_ascii=False).encode()
CERTIFICATE = Path(__file__).with_name("hooks_test.pem")  # self-signed, for hooks.test

Resolver = Callable[..., list[tuple[Any, ...]]]


def send(url: str, *, timeout_seconds: float = 20, allow_private: bool = True) -> Reply:
    return post(
        url, BODY, event_id="evt_1", secret=SECRET, timeout_seconds=timeout_seconds, allow_private=allow_private
    )


def resolver_of(*addresses: str) -> tuple[Resolver, list[str]]:
    """A resolver that knows these addresses for every name, and the names it was asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo, asked


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


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "http://127.1:9/",
        "http://0x7f000001:9/",
        "http://2130706433:9/",
        "http://0177.0.0.1:9/",
        "http://0.0.0.0:9/",
        "http://[::1]:9/",
        "http://[::ffff:127.0.0.1]:9/",
        "http://[64:ff9b::7f00:1]:9/",
        "http://[2002:7f00:1::]:9/",
        "http://[fe80::1]:9/",
        "http://①②⑦.0.0.1:9/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:secret@192.168.0.1/",
    ],
)
def test_private_address_in_any_spelling_is_refused(url: str) -> None:
    reply = send(url, allow_private=False)
    assert reply.is_refused
    assert reply.error is not None and ("not public" in reply.error or "not a URL" in reply.error)


def test_refusal_names_the_way_out_but_not_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    getaddrinfo, _ = resolver_of("10.1.2.3")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reply = send("http://intern.test/", allow_private=False)
    assert reply.error is not None
    assert "intern.test" in reply.error and "HEADRACE_WEBHOOK_ALLOW_PRIVATE=1" in reply.error
    assert "10.1.2.3" not in reply.error


@pytest.mark.parametrize(
    "address", ["224.0.0.1", "240.0.0.1", "100.64.0.1", "192.0.0.8", "fec0::1", "ff02::1", "5f00::1"]
)
def test_address_that_is_special_without_being_private_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_name_that_mixes_public_and_private_addresses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    getaddrinfo, _ = resolver_of("1.1.1.1", "127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert send("http://mixed.test/", allow_private=False).is_refused


def test_checked_address_is_the_connected_one_because_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    getaddrinfo, asked = resolver_of("127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with receiver() as endpoint:
        reply = send(f"http://rebinding.test:{endpoint.port}/")
        delivery = endpoint.next()
    assert reply.error is None
    assert asked == ["rebinding.test"]
    assert delivery.headers["host"] == f"rebinding.test:{endpoint.port}"


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with receiver() as endpoint:
        assert send(endpoint.url).error is None


def test_address_that_takes_no_connection_leaves_the_next_its_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    getaddrinfo, _ = resolver_of("127.0.0.2", "127.0.0.1")  # the endpoint listens on 127.0.0.1 alone
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with receiver() as endpoint:
        assert send(f"http://two.test:{endpoint.port}/").error is None


@pytest.fixture
def tls_receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An https endpoint for hooks.test, trusted; every name resolves to it."""
    getaddrinfo, _ = resolver_of("127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
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


def test_unknown_name_is_a_failed_attempt_that_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reply = send("http://nowhere.test/")
    assert reply.error is not None and "cannot resolve nowhere.test" in reply.error
    assert not reply.is_refused


def test_name_that_idna_of_2008_forbids_is_posted_to_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    getaddrinfo, asked = resolver_of("127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with receiver() as endpoint:
        reply = send(f"http://xn--ls8h.la:{endpoint.port}/")
        assert endpoint.next().headers["host"] == f"xn--ls8h.la:{endpoint.port}"
    assert (reply.error, asked) == (None, ["xn--ls8h.la"])


def test_resolver_that_hangs_is_held_to_the_same_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        released.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reply = send("http://slow-name.test/", timeout_seconds=0.2)
    assert not released.is_set()
    released.set()
    assert reply.error is not None and "cannot resolve slow-name.test: no answer within 0.2 s" in reply.error
    assert not reply.is_refused


def test_slow_resolver_leaves_only_the_rest_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.monotonic
    skipped = 0.0

    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        nonlocal skipped
        skipped = 30.0  # seconds that the resolver took
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(webhooks.time, "monotonic", lambda: clock() + skipped)
    with receiver() as endpoint:
        reply = send(f"http://slow-name.test:{endpoint.port}/", timeout_seconds=20)
        assert endpoint.got.empty()
    assert reply.error == "no answer within 20 s"


def test_reason_is_text_that_postgres_can_hold() -> None:
    assert storable("a\x00b\ud800c") == "a\N{REPLACEMENT CHARACTER}b?c"


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "file:///etc/passwd", "https:///path", "example.com", "http://[::1"]
)
def test_url_that_is_no_web_address_is_refused(url: str) -> None:
    assert send(url).is_refused


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
