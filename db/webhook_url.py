"""Which URLs a webhook may have: one parser for the API, which refuses early, and for the sender, which connects.

Asks no resolver: where a name leads is checked by whoever connects to it (`workers/addresses.py`).
"""

import re

import httpx

from db.addresses import is_public, literal_address

MAX_HOST_CHARS = 253
# Parsers disagree on these: some strip them, some take a backslash for a slash.
AMBIGUOUS = re.compile(r"[\s\\\x00-\x1f\x7f-\x9f]")
HOST_NAME = re.compile(r"([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as the last label, it makes the host an address


class UrlRefused(Exception):
    """No webhook can ever go to this URL; the message says why."""


def parse_url(url: str) -> httpx.URL:
    """The URL, known to be http or https with a host and a port that can exist. Raises UrlRefused."""
    if AMBIGUOUS.search(url):
        raise UrlRefused("a webhook URL has no spaces, control characters or backslashes; send them percent-encoded")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UrlRefused(f"not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise UrlRefused("a webhook URL begins with http:// or https:// and names a host")
    if not _is_host(host_of(parsed)):
        raise UrlRefused(f"not a URL: {parsed.raw_host.decode('ascii')} can be no host")
    if not 1 <= port_of(parsed) <= 65535:
        raise UrlRefused(f"not a URL: port {port_of(parsed)} is not from 1 to 65535")
    return parsed


def check_public(url: httpx.URL) -> None:
    """Raise UrlRefused when the host says by itself that it is not public, without asking a resolver."""
    host = host_of(url)
    address = literal_address(host)
    if host.rpartition(".")[2] == "localhost" or (address is not None and not is_public(address)):
        raise UrlRefused(
            f"{host} is not public; use a public address, or set HEADRACE_WEBHOOK_ALLOW_PRIVATE=1 for local work"
        )


def lane_host(url: str) -> str:
    """Host and port that a webhook goes to, in one spelling; the port only where the scheme means another.

    URLs that are refused share the empty one: this is asked while a job ends, and never fails.
    """
    try:
        parsed = parse_url(url)
    except UrlRefused:
        return ""
    port = port_of(parsed)
    return host_of(parsed) if port == _default_port(parsed) else f"{host_of(parsed)}:{port}"


def host_of(url: httpx.URL) -> str:
    """The host in lower case and ASCII (IDNA), without a final dot; an address in its usual spelling."""
    # Not `url.host`, which decodes IDNA, and raises for names such as xn--ls8h.la that exist all the same.
    host = url.raw_host.decode("ascii").lower().removesuffix(".")
    return str(literal_address(host) or host)


def port_of(url: httpx.URL) -> int:
    """The port, named or meant."""
    return _default_port(url) if url.port is None else url.port


def _default_port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80


def _is_host(host: str) -> bool:
    if literal_address(host) is not None:
        return "%" not in host  # a zone means something on one machine only
    is_name = len(host) <= MAX_HOST_CHARS and HOST_NAME.fullmatch(host) is not None
    return is_name and NUMBER.fullmatch(host.rpartition(".")[2]) is None
