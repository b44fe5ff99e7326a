"""Which IP addresses are public: the rule for a webhook URL when it is submitted, and again when it is connected to."""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

GLOBAL_UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")  # the last 32 bits are the IPv4 address the gateway connects to
SPECIAL_IPV4 = (ip_network("192.0.0.0/24"), ip_network("192.88.99.0/24"))  # some Pythons call parts of these global

Address = IPv4Address | IPv6Address


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


def literal_address(host: str) -> Address | None:
    """The address that `host` spells, in any spelling a resolver takes (`127.1`, `0x7f000001`); None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
