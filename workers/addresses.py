"""Where a webhook's host leads. The caller connects to an address from here and never resolves again."""

import socket
import threading
from concurrent.futures import Future
from ipaddress import ip_address

from db.addresses import Address, is_public


class AddressRefused(Exception):
    """The URL leads to an address that is not public."""


class NameUnknown(Exception):
    """The host name could not be resolved; it may be later."""


def public_addresses(host: str, port: int, *, allow_private: bool, timeout_seconds: float) -> list[Address]:
    """Every address of `host` in the resolver's order, each one checked.

    One address that is not public refuses the host: a name that mixes both is made to slip through. The message does
    not name the address, which would tell a tenant about names inside this network. Raises AddressRefused, NameUnknown.
    """
    addresses = resolve(host, port, timeout_seconds=timeout_seconds)
    if not allow_private and not all(is_public(address) for address in addresses):
        raise AddressRefused(
            f"{host} resolves to an address that is not public; use a public address, "
            "or set HEADRACE_WEBHOOK_ALLOW_PRIVATE=1 for local work"
        )
    return addresses


def resolve(host: str, port: int, *, timeout_seconds: float) -> list[Address]:
    """The addresses of a name or of any spelling of an address (`127.1`, `0x7f000001`). Raises NameUnknown.

    The resolver takes no timeout and cannot be interrupted, so it gets a thread of its own. One that is given up ends
    with the resolver's own patience, and holds up neither its caller nor the end of the process.
    """
    answer: Future[list[Address]] = Future()
    threading.Thread(target=_ask_resolver, args=(host, port, answer), name=f"resolve {host}", daemon=True).start()
    try:
        return answer.result(timeout_seconds)
    except TimeoutError as error:
        raise NameUnknown(f"cannot resolve {host}: no answer within {timeout_seconds:g} s") from error
    except (OSError, UnicodeError) as error:
        raise NameUnknown(f"cannot resolve {host}: {error}") from error


def _ask_resolver(host: str, port: int, answer: "Future[list[Address]]") -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        answer.set_result(list(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in found)))
    except Exception as error:
        answer.set_exception(error)
