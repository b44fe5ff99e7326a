"""Which addresses a webhook may be sent to. The caller connects to an address from here and never resolves again."""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

GLOBAL_UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")  # the last 32 bits are the IPv4 address the gateway connects to
SPECIAL_IPV4 = (ip_network("192.0.0.0/24"), ip_network("192.88.99.0/24"))  # some Pythons call parts of these global

Address = IPv4Address | IPv6Address


class AddressRefused(Exception):
    """The URL leads to an address that is not public."""


class NameUnknown(Exception):
    """The host name could not be resolved; it may be later."""


def public_addresses(host: str, port: int, *, allow_private: bool) -> list[Address]:
    """Every address of `host` in the resolver's order, each one checked.

    One address that is not public refuses the host: a name that mixes both is made to slip through. The message does
    not name the address, which would tell a tenant about names inside this network. Raises AddressRefused, NameUnknown.
    """
    addresses = resolve(host, port)
    if not allow_private and not all(is_public(address) for address in addresses):
        raise AddressRefused(
            f"{host} resolves to an address that is not public; use a public address, "
            "or set HEADRACE_WEBHOOK_ALLOW_PRIVATE=1 for local work"
        )
    return addresses


def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a name or of any spelling of an address (`127.1`, `0x7f000001`). Raises NameUnknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NameUnknown(f"cannot resolve {host}: {error}") from error
    return list(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in found))


def is_public(address: Address) -> bool:
    """Whether an address is reachable on the internet by everyone, also when it wraps an IPv4 address."""
    if isinstance(address, IPv4Address):
        is_special = any(address in network for network in SPECIAL_IPV4)
        return address.is_global and not (address.is_multicast or address.is_reserved or is_special)
    wrapped = wrapped_ipv4(address)
    if wrapped is not None:
        return is_public(wrapped)
    return address in GLOBAL_UNICAST and address.is_global


def wrapped_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address a mapped, 6to4 or NAT64 address stands for."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
