"""Where a client finds its server and its key: the one place, for programs and for the command line."""

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Server:
    """Its URL, without a slash at the end, and the key to it, where one was found."""

    url: str
    key: str | None = field(repr=False)


def find_server(url: str | None, key: str | None) -> Server:
    """What was given; else HEADRACE_URL and HEADRACE_API_KEY; else this machine's server, and its data directory's key.

    That one is for this machine's server alone: no other is sent it. Raises pydantic's ValidationError when a
    setting is wrong.
    """
    url = url or os.environ.get("HEADRACE_URL") or _default_url()
    if "://" not in url:
        url = f"http://{url}"
    return Server(url.rstrip("/"), key or _default_key(urlsplit(url).hostname))


def _default_url() -> str:
    from db.settings import get_settings

    return f"http://127.0.0.1:{get_settings().port}"


def _default_key(host: str | None) -> str | None:
    from db.settings import get_settings

    settings = get_settings()  # reads HEADRACE_API_KEY
    if settings.api_key:
        return settings.api_key
    if host not in (*LOOPBACK, settings.host):
        return None
    try:
        return (settings.data_dir / "api-key").read_text().strip() or None
    except OSError:
        return None
