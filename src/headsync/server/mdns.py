"""Announcement of the Wyoming server by mDNS, for discovery by Home Assistant; requires the package zeroconf."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SERVICE = "_wyoming._tcp.local."
EVERY_INTERFACE = ("", "0.0.0.0", "::")


def network_addresses(host: str) -> list[str]:
    """The IPv4 addresses at which other computers reach a server; none without the package zeroconf."""
    try:
        import ifaddr  # a dependency of zeroconf
    except ModuleNotFoundError:
        return []
    if host in EVERY_INTERFACE:
        found = [str(address.ip) for adapter in ifaddr.get_adapters() for address in adapter.ips if address.is_IPv4]
    else:
        found = _resolve(host)
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def _resolve(host: str) -> list[str]:
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, socket.AF_INET)})
    except OSError:  # an IPv6 address
        return []


@contextmanager
def announced(addresses: Sequence[str], port: int) -> Iterator[None]:
    """Announce the server inside the block; without addresses, nothing is announced."""
    if not addresses:
        yield
        return
    from zeroconf import ServiceInfo, Zeroconf

    name = f"headsync on {socket.gethostname().partition('.')[0]} ({port})"
    service = ServiceInfo(SERVICE, f"{name}.{SERVICE}", port=port, parsed_addresses=list(addresses))
    with Zeroconf(interfaces=list(addresses)) as network:
        network.register_service(service)
        yield
