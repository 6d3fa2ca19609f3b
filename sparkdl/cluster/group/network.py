"""Addresses that other hosts can dial."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from sparkdl.errors import InvalidInput


@dataclass(frozen=True)
class Address:
    """A numeric IPv4 or IPv6 address of this host.

    Attributes:
        host: the address, an IPv6 one without brackets.
    """

    host: str

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET or AF_INET6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def split_host(address: str) -> str:
    """The host of ``host:port``, ``[v6]:port``, a bare host or a bare IPv6 literal."""
    if address.startswith("["):
        return address[1 : address.index("]")]
    return address if address.count(":") > 1 else address.split(":", 1)[0]


def dialable(name: str, *, peers: Iterable[str] = (), override: str | None = None) -> Address:
    """The address of this host that the other members should dial.

    Args:
        name: the name or address by which the cluster knows this host.
        peers: names or addresses of the other members' hosts.
        override: an address or the name of an interface of this host that is to be used instead.

    Raises:
        InvalidInput: the override is neither an address nor an interface of this host.
    """
    if override is not None:
        return _overridden(override)
    address = _resolve(name)
    others = [peer for peer in peers if peer != name]
    if others and (address is None or ipaddress.ip_address(address).is_loopback):
        # Hosts files often map a host's own name to loopback; what routes to a peer is what a peer can dial.
        address = next((route for route in map(_route_to, others) if route is not None), address)
    return Address(address or "127.0.0.1")


def interface_of(host: str) -> str | None:
    """The name of the interface that owns an address; None where the system does not tell."""
    for _, interface in socket.if_nameindex():
        if host in _addresses(interface):
            return interface
    return None


def listen(address: Address) -> socket.socket:
    """A listening socket on an address, on a port that the system chooses."""
    listening = socket.socket(address.family, socket.SOCK_STREAM)
    listening.bind((address.host, 0))
    listening.listen(1024)
    return listening


def _overridden(override: str) -> Address:
    owned = {interface: _addresses(interface) for _, interface in socket.if_nameindex()}
    if owned.get(override):
        return Address(owned[override][0])
    found = _resolve(override)
    if found is None or not any(found in addresses for addresses in owned.values()):
        raise InvalidInput(f"{override!r} is neither an interface nor an address of this host; it has {owned}.")
    return Address(found)


def _resolve(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _route_to(peer: str) -> str | None:
    """The local address from which a peer is reached; nothing is sent."""
    target = _resolve(peer)
    if target is None:
        return None
    with socket.socket(Address(target).family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _addresses(interface: str) -> list[str]:
    """The addresses of an interface, IPv4 first (Linux)."""
    import fcntl
    import struct

    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24]))  # SIOCGIFADDR
        except OSError:
            found.clear()  # the interface has no IPv4 address
    try:
        with open("/proc/net/if_inet6") as table:
            for line in table:
                raw, *_, owner = line.split()
                if owner == interface:
                    found.append(str(ipaddress.IPv6Address(int(raw, 16))))
    except FileNotFoundError:
        return found  # IPv6 is off
    return found
