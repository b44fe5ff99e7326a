"""A resolver that knows what the test says."""

import socket
from typing import Any

import pytest


def resolve_all_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Have every name lead to these addresses. Returns the names that are asked for, as they come."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked
