"""Which URLs a webhook may have, and which of them lead to the same place."""

import httpx
import pytest

from db.webhook_url import UrlRefused, check_public, lane_host, parse_url


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hooks?x=1#y",
        "http://user:secret@example.com:8080/",
        "HTTPS://Example.COM",
        "http://compose_service/",
        "http://bücher.de/ä",
        "http://xn--ls8h.la/",  # 💩.la: no IDNA of 2008, and yet it resolves
        "http://1.1.1.1/",
        "http://[2606:4700::1111]:8080/",
        "http://example.com./",
    ],
)
def test_url_that_can_be_posted_to_is_taken(url: str) -> None:
    assert isinstance(parse_url(url), httpx.URL)


@pytest.mark.parametrize(
    "url",
    [
        "http:example.com",
        "http:\\\\example.com",
        "http://public.test\\@10.0.0.1/",
        " http://example.com",
        "http://example.com ",
        "http://exa mple.com/",
        "http://example.com/\u2003x",
        "http://example.com/\x01",
        "http://example.com/\x7f",
        "http://example.com/\n",
        "http://example.com/\ud800",
        "http://☃.net/",
        "http://.",
        "http://a..b/",
        "http://.a.test/",
        "http://ex%61mple.com/",
        "http://a,b/",
        f"http://{'a' * 64}.test/",
        f"http://{'a.' * 127}test/",
        "http://1.2.3.4.5/",
        "http://[fe80::1%25eth0]/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https:///path",
        "http://",
        "example.com",
        "http://[::1",
        "",
    ],
)
def test_url_that_can_never_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        parse_url(url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "10.0.0.1", "169.254.169.254", "127.0.0.1.", "[::1]"]
    + ["[::ffff:10.0.0.1]", "[FC00::1]", "localhost", "LOCALHOST.", "me.localhost"],
)
def test_host_that_is_not_public_by_its_spelling_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(UrlRefused, match="HEADRACE_WEBHOOK_ALLOW_PRIVATE=1"):
        check_public(parse_url(f"http://{host}:9/"))


@pytest.mark.parametrize("host", ["example.com", "1.1.1.1", "[2606:4700::1111]", "localhost.example.com"])
def test_host_that_may_be_public_is_taken(host: str) -> None:
    check_public(parse_url(f"http://{host}/"))


@pytest.mark.parametrize(
    ("urls", "host"),
    [
        (
            ["http://slow", "http://slow?1", "http://u1@slow/", "http://SLOW/x", "HTTP://SLOW:80/", "http://slow./"],
            "slow",
        ),
        (["https://slow", "https://slow:443/", "HTTPS://slow:443#x"], "slow"),
        (["http://bücher.de/", "http://BÜCHER.de:80/", "http://xn--bcher-kva.de/"], "xn--bcher-kva.de"),
        (["http://1.1/", "http://1.0.0.1/", "http://0x01000001/"], "1.0.0.1"),
        (["http://[2606:4700:0::1111]/", "http://[2606:4700::1111]:80/"], "2606:4700::1111"),
        (["http://slow:8080/", "https://slow:8080"], "slow:8080"),
        (["no URL", "http://a..b/", "http://\ud800/"], ""),
    ],
)
def test_every_spelling_of_a_host_is_one_lane(urls: list[str], host: str) -> None:
    assert {lane_host(url) for url in urls} == {host}
