"""One webhook attempt: sign an event as Standard Webhooks prescribes, POST it to a checked address, say how it went.

Knows nothing of schedules and rows. Never follows a redirect, never resolves a name twice, never uses a proxy.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib.metadata import version

import httpx
from standardwebhooks import Webhook

from db.addresses import Address
from db.webhook_url import UrlRefused, parse_url, port_of
from workers.addresses import AddressRefused, NameUnknown, public_addresses
from workers.redaction import redacted

CONNECT_SECONDS = 5.0  # per address, so that a dead first address leaves time for the second
MAX_BODY_BYTES = 16 * 1024  # read of an answer; the rest is not wanted
MAX_EXCERPT_CHARS = 500
MAX_ERROR_CHARS = 1000


@dataclass(frozen=True)
class Reply:
    """How one attempt went. `error` is None exactly when the endpoint took the event."""

    started_at: datetime
    duration_ms: int
    status_code: int | None  # None: there was no answer
    error: str | None
    excerpt: str | None  # the beginning of the answer's body
    retry_after_seconds: float | None  # what the endpoint asked for
    is_refused: bool = False  # this URL can never be used; nothing was sent


@dataclass(frozen=True)
class Answer:
    """What the endpoint answered, as far as it matters here."""

    status_code: int
    headers: httpx.Headers
    body: bytes  # at most MAX_BODY_BYTES


def post(
    url: str,
    body: bytes,
    *,
    event_id: str,
    secrets: Sequence[str],
    timeout_seconds: float,
    allow_private: bool = False,
) -> Reply:
    """Send one event and report; an attempt that goes wrong is a result, not an exception.

    `timeout_seconds` bounds resolving the name, connecting, sending and the answer together, however slowly each of
    them drips. Each call signs the same id and bytes with a fresh timestamp, once with each of the secrets.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    answer: Answer | None = None
    is_refused = False
    try:
        target = parse_url(url)
        host = target.raw_host.decode("ascii")
        addresses = public_addresses(
            host, port_of(target), allow_private=allow_private, timeout_seconds=timeout_seconds
        )
        headers = signed_headers(body, event_id=event_id, secrets=secrets, now=started_at)
        seconds_left = started + timeout_seconds - time.monotonic()
        answer = asyncio.run(_exchange(target, addresses, headers, body, seconds_left))
        error = explain(answer)
    except (UrlRefused, AddressRefused) as refusal:
        error, is_refused = str(refusal), True
    except TimeoutError:
        error = f"no answer within {timeout_seconds:g} s"
    except (NameUnknown, httpx.HTTPError) as failure:
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
    return Reply(
        started_at=started_at,
        duration_ms=round((time.monotonic() - started) * 1000),
        status_code=answer.status_code if answer else None,
        error=None if error is None else storable(redacted(error, secrets=secrets)[:MAX_ERROR_CHARS]),
        excerpt=excerpt_of(answer.body, secrets=secrets) if answer else None,
        retry_after_seconds=retry_after(answer.headers, now=started_at) if answer else None,
        is_refused=is_refused,
    )


def broken_off(started_at: datetime, error: Exception) -> Reply:
    """How an attempt went that ended in an error of ours. Its owner reads of what kind; the log has the rest."""
    return _without_answer(started_at, f"broke off: {type(error).__name__}", is_refused=False)


def not_sent(started_at: datetime, reason: str) -> Reply:
    """The end of a delivery whose endpoint is to get nothing."""
    return _without_answer(started_at, f"not sent: {reason}", is_refused=True)


def _without_answer(started_at: datetime, error: str, *, is_refused: bool) -> Reply:
    return Reply(
        started_at=started_at,
        duration_ms=round((datetime.now(UTC) - started_at).total_seconds() * 1000),
        status_code=None,
        error=error,
        excerpt=None,
        retry_after_seconds=None,
        is_refused=is_refused,
    )


def signed_headers(body: bytes, *, event_id: str, secrets: Sequence[str], now: datetime) -> dict[str, str]:
    """The headers of an attempt made at `now` (UTC): id, timestamp, and a signature over `id.timestamp.body` for each
    secret, so that a receiver that knows any of them can tell.
    """
    return {
        "content-type": "application/json",
        "user-agent": f"Headrace/{version('headrace')}",
        "accept-encoding": "identity",  # an excerpt is kept; nothing here unpacks a bomb
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(event_id, now, body.decode()) for secret in secrets),
    }


def explain(answer: Answer) -> str | None:
    """Why an answer is no success, in words for the endpoint's owner; None for 2xx."""
    if 200 <= answer.status_code < 300:
        return None
    if 300 <= answer.status_code < 400:
        location = redacted(answer.headers.get("location", ""))[:MAX_EXCERPT_CHARS] or "nowhere"
        return f"answered {answer.status_code}, a redirect to {location}; redirects are not followed, use the final URL"
    return f"answered {answer.status_code}"


def retry_after(headers: httpx.Headers, *, now: datetime) -> float | None:
    """Seconds the endpoint asks to be left alone, from either form of Retry-After; None when absent or unreadable."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # an offset of more digits than any time zone has
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def excerpt_of(body: bytes, *, secrets: Sequence[str] = ()) -> str:
    """The beginning of a body, as text, without the secrets in it."""
    return storable(redacted(body.decode(errors="replace"), secrets=secrets)[:MAX_EXCERPT_CHARS])


def storable(text: str) -> str:
    """Text that Postgres can hold: without U+0000 and without halves of surrogate pairs."""
    return text.encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


async def _exchange(
    url: httpx.URL, addresses: Sequence[Address], headers: dict[str, str], body: bytes, seconds_left: float
) -> Answer:
    """The answer of the first address that takes a connection."""
    deadline = asyncio.get_running_loop().time() + seconds_left
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx.AsyncClient(verify=_ssl_context(), trust_env=False, timeout=timeout) as client:
        for address in addresses[:-1]:
            try:
                return await _ask(client, _request(client, url, address, headers, body), deadline)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # nothing was sent yet
        return await _ask(client, _request(client, url, addresses[-1], headers, body), deadline)


def _request(
    client: httpx.AsyncClient, url: httpx.URL, address: Address, headers: dict[str, str], body: bytes
) -> httpx.Request:
    """A request that connects to `address` but asks for, and verifies the certificate of, the URL's host."""
    return client.build_request(
        "POST",
        url.copy_with(host=str(address)),
        headers=headers | {"host": url.netloc.decode("ascii")},
        content=body,
        extensions={"sni_hostname": url.raw_host.decode("ascii").rstrip(".")},
    )


async def _ask(client: httpx.AsyncClient, request: httpx.Request, deadline: float) -> Answer:
    """Status, headers and the beginning of the body. A body that breaks off does not change what the status said."""
    async with asyncio.timeout_at(deadline):
        response = await client.send(request, stream=True, follow_redirects=False)
    body = bytearray()
    try:
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= MAX_BODY_BYTES:
                    break
    except (TimeoutError, httpx.HTTPError):
        pass
    finally:
        await response.aclose()
    return Answer(response.status_code, response.headers, bytes(body[:MAX_BODY_BYTES]))


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    """Trusted roots, read once: SSL_CERT_FILE or SSL_CERT_DIR where set, else certifi's."""
    return httpx.create_ssl_context(trust_env=True)
