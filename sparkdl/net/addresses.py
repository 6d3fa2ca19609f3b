"""Addresses of this host that other hosts can dial: numeric IPv4 or IPv6, without brackets."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from sparkdl.errors import InvalidInput


def split_host(address: str) -> str:
    """The host of ``host:port``, ``[v6]:port``, a bare host or a bare IPv6 literal."""
    if address.startswith("["):
        return address[1 : address.index("]")]
    return address if address.count(":") > 1 else address.split(":", 1)[0]


def worker_address(rank: int, tasks: Sequence[str], *, override: str | None = None) -> str:
    """The address of this host that the other workers of a gang dial.

    Args:
        rank: of this worker.
        tasks: the cluster's address of each worker's host, in rank order, with or without a port.
        override: as of ``dialable``.

    Raises:
        InvalidInput: as ``dialable``.
    """
    hosts = [*map(split_host, tasks)]
    return dialable(hosts[rank], peers=hosts, override=override)


def dialable(name: str, *, peers: Iterable[str] = (), override: str | None = None) -> str:
    """The address of this host that the other workers dial.

    Args:
        name: the cluster's name or address of this host.
        peers: names or addresses of the other workers' hosts.
        override: an address or interface name of this host to use instead.

    Raises:
        InvalidInput: ``override`` is neither an address nor an interface of this host.
    """
    if override is not None:
        return _override(override)
    address = _resolve(name)
    others = [peer for peer in peers if peer != name]
    if others and (address is None or ipaddress.ip_address(address).is_loopback):
        # Hosts files often map a host's own name to loopback; a peer can dial the address that routes to it.
        address = next(filter(None, map(_route_to, others)), address)
    return address or "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The name of the interface that owns an address; None if the system does not list it."""
    return next((interface for interface, addresses in list_interfaces().items() if address in addresses), None)


def listen(address: str) -> socket.socket:
    """Listen on an address, on a port that the system chooses."""
    return socket.create_server((address, 0), family=_family(address), backlog=1024)


def list_interfaces() -> dict[str, list[str]]:
    """The IPv4 addresses, then the IPv6 addresses, of each interface."""
    return {
        interface: [
            address.address.partition("%")[0]  # a link-local IPv6 address ends with its interface
            for family in (socket.AF_INET, socket.AF_INET6)
            for address in addresses
            if address.family == family
        ]
        for interface, addresses in psutil.net_if_addrs().items()
    }


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _override(override: str) -> str:
    interfaces = list_interfaces()
    if interfaces.get(override):
        return interfaces[override][0]
    address = _resolve(override)
    if address is None or not any(address in addresses for addresses in interfaces.values()):
        raise InvalidInput(f"{override!r} is neither an interface nor an address of this host; it has {interfaces}.")
    return address


def _resolve(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None


def _route_to(peer: str) -> str | None:
    if (target := _resolve(peer)) is None:
        return None
    with socket.socket(_family(target), socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((target, 9))
        return str(probe.getsockname()[0])
    return None
