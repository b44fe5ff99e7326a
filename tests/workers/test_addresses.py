"""Where an attempt may go: which addresses are refused, and that the checked address is the connected one."""

import socket
import threading
import time
from ipaddress import ip_address
from typing import Any

import pytest

from db.addresses import is_public
from tests.receiver import receiver
from tests.resolver import resolve_all_to
from tests.workers.webhook_attempt import send
from workers import webhooks


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
    resolve_all_to(monkeypatch, "10.1.2.3")
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
    resolve_all_to(monkeypatch, "1.1.1.1", "127.0.0.1")
    assert send("http://mixed.test/", allow_private=False).is_refused


def test_checked_address_is_the_connected_one_because_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve_all_to(monkeypatch, "127.0.0.1")
    with receiver() as endpoint:
        reply = send(f"http://rebinding.test:{endpoint.port}/")
        delivery = endpoint.next()
    assert reply.error is None
    assert asked == ["rebinding.test"]
    assert delivery.headers["host"] == f"rebinding.test:{endpoint.port}"


def test_address_that_takes_no_connection_leaves_the_next_its_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_all_to(monkeypatch, "127.0.0.2", "127.0.0.1")  # the endpoint listens on 127.0.0.1 alone
    with receiver() as endpoint:
        assert send(f"http://two.test:{endpoint.port}/").error is None


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "file:///etc/passwd", "https:///path", "example.com", "http://[::1"]
)
def test_url_that_is_no_web_address_is_refused(url: str) -> None:
    assert send(url).is_refused


def test_name_that_idna_of_2008_forbids_is_posted_to_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve_all_to(monkeypatch, "127.0.0.1")
    with receiver() as endpoint:
        reply = send(f"http://xn--ls8h.la:{endpoint.port}/")
        assert endpoint.next().headers["host"] == f"xn--ls8h.la:{endpoint.port}"
    assert (reply.error, asked) == (None, ["xn--ls8h.la"])


def test_unknown_name_is_a_failed_attempt_that_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reply = send("http://nowhere.test/")
    assert reply.error is not None and "cannot resolve nowhere.test" in reply.error
    assert not reply.is_refused


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
