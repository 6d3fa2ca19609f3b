"""Addresses that other hosts can dial, on any network of this host."""

from __future__ import annotations

import socket

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.net.addresses import dialable, interface_of, list_interfaces, listen, split_host

INTERFACES = list_interfaces()
ADDRESSES = [(name, address) for name, addresses in INTERFACES.items() for address in addresses]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        *(("node-7:7337", "node-7"), ("node-7", "node-7"), ("10.0.0.7:80", "10.0.0.7"), ("10.0.0.7", "10.0.0.7")),
        *(("[::1]:7337", "::1"), ("[fe80::1%eth0]:0", "fe80::1%eth0"), ("[2001:db8::7]", "2001:db8::7")),
        *(("2001:db8::7", "2001:db8::7"), ("::1", "::1"), ("::", "::"), ("a.b.example.com:1", "a.b.example.com")),
        (":80", ""),
    ],
)
def test_host_of_address(address: str, host: str) -> None:
    assert split_host(address) == host


@pytest.mark.parametrize(
    ("name", "peers", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1", "127.0.0.1"], "127.0.0.1"),
        ("127.0.0.1", ["127.0.0.1", "127.0.0.2"], "127.0.0.1"),
        ("192.0.2.7", ["192.0.2.8"], "192.0.2.7"),  # reserved for documentation
        ("127.0.0.1", ["no-such-host.invalid"], "127.0.0.1"),
        ("no-such-host.invalid", ["neither.invalid"], "127.0.0.1"),
    ],
)
def test_address_by_peers(name: str, peers: list[str], expected: str) -> None:
    assert dialable(name, peers=peers) == expected


@pytest.mark.parametrize("colon", [False, True], ids=["IPv4", "IPv6"])
def test_peers_elsewhere_do_not_get_loopback(colon: bool) -> None:
    # Hosts files map names of hosts to loopback: the address that routes to the peer counts.
    outward = [address for name, address in ADDRESSES if name != "lo" and not address.startswith("fe80")]
    address = next((address for address in outward if (":" in address) == colon), None)
    if address is None:
        pytest.skip("this host has no address beside loopback")
    for name in ("127.0.0.1", "127.0.1.1", "no-such-host.invalid"):
        assert dialable(name, peers=[name, address]) == address


def test_interfaces_and_overrides() -> None:
    assert interface_of("192.0.2.1") is None
    for interface, address in [("lo", "127.0.0.1"), *ADDRESSES]:
        assert interface_of(address) == interface
        if not address.startswith("fe80"):
            assert dialable("192.0.2.7", peers=["192.0.2.8"], override=address) == address
    for interface, addresses in INTERFACES.items():
        if addresses:
            assert dialable("192.0.2.7", override=interface) == addresses[0]
    assert dialable("192.0.2.7", override="lo") == "127.0.0.1"
    assert dialable("192.0.2.7", override="localhost") in INTERFACES["lo"]


@pytest.mark.parametrize("override", ["192.0.2.1", "no-such-interface", "", "lo0", "256.1.1.1", "2001:db8::7"])
def test_other_override_raises_with_known_addresses(override: str) -> None:
    message = rf"'{override}' is neither an interface nor an address .*'lo': \['127.0.0.1"
    with pytest.raises(InvalidInput, match=message):
        dialable("localhost", override=override)


@pytest.mark.skipif("::1" not in INTERFACES["lo"], reason="this host has no ::1")
def test_socket_listens_on_ipv6() -> None:
    with listen("::1") as server, socket.create_connection(server.getsockname()[:2]) as client:
        assert client.getpeername()[0] == "::1"
