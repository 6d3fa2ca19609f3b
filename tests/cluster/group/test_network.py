"""Addresses that other hosts can dial, on whatever network this host has."""

from __future__ import annotations

import ast
import socket

import pytest

from sparkdl.cluster.group.network import Address, dialable, interface_of, listen, split_host
from sparkdl.errors import InvalidInput


def owned() -> dict[str, list[str]]:
    """Interface -> its addresses, as the error about an override lists them."""
    with pytest.raises(InvalidInput) as caught:
        dialable("localhost", override="192.0.2.1")  # reserved for documentation
    found: dict[str, list[str]] = ast.literal_eval(str(caught.value).partition("it has ")[2].rstrip("."))
    return found


def outward(family: socket.AddressFamily) -> list[str]:
    addresses = [address for interface, own in owned().items() if interface != "lo" for address in own]
    return [address for address in addresses if Address(address).family == family and not address.startswith("fe80")]


# ---- names of hosts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("node-7:7337", "node-7"),
        ("node-7", "node-7"),
        ("10.0.0.7:80", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("[::1]:7337", "::1"),
        ("[fe80::1%eth0]:0", "fe80::1%eth0"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("2001:db8::7", "2001:db8::7"),
        ("::1", "::1"),
        ("::", "::"),
        ("a.b.example.com:1", "a.b.example.com"),
        (":80", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert split_host(address) == host


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("2001:db8::7", socket.AF_INET6)]
)
def test_the_family_of_an_address(host: str, family: socket.AddressFamily) -> None:
    assert Address(host).family == family


# ---- which address ---------------------------------------------------------------------------------------------------


def test_a_host_alone_keeps_its_own_address() -> None:
    assert dialable("127.0.0.1") == Address("127.0.0.1")
    assert dialable("127.0.0.1", peers=["127.0.0.1", "127.0.0.1"]) == Address("127.0.0.1")
    assert Address(dialable("localhost").host).host in ("127.0.0.1", "::1")


def test_peers_on_loopback_are_reached_over_loopback() -> None:
    assert dialable("127.0.0.1", peers=["127.0.0.1", "127.0.0.2"]) == Address("127.0.0.1")


def test_an_address_that_peers_can_dial_is_kept() -> None:
    assert dialable("192.0.2.7", peers=["192.0.2.8"]) == Address("192.0.2.7")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_loopback_is_not_told_to_peers_elsewhere(family: socket.AddressFamily) -> None:
    """A hosts file that maps the host's name to loopback: what counts is the address from which the peer is reached."""
    addresses = outward(family)
    if not addresses:
        pytest.skip("this host has no address beside loopback")
    for name in ("127.0.0.1", "127.0.1.1", "no-such-host.invalid"):
        assert dialable(name, peers=[name, addresses[0]]) == Address(addresses[0])


def test_peers_that_nobody_knows_change_nothing() -> None:
    assert dialable("127.0.0.1", peers=["no-such-host.invalid"]) == Address("127.0.0.1")
    assert dialable("no-such-host.invalid", peers=["neither.invalid"]) == Address("127.0.0.1")


# ---- the override ----------------------------------------------------------------------------------------------------


def test_an_override_by_address() -> None:
    for addresses in owned().values():
        for address in addresses:
            if not address.startswith("fe80"):
                assert dialable("192.0.2.7", peers=["192.0.2.8"], override=address) == Address(address)


def test_an_override_by_interface() -> None:
    assert dialable("192.0.2.7", override="lo") == Address("127.0.0.1")
    for interface, addresses in owned().items():
        if addresses:
            assert dialable("192.0.2.7", override=interface) == Address(addresses[0])


def test_an_override_by_name() -> None:
    assert dialable("192.0.2.7", override="localhost").host in owned()["lo"]


@pytest.mark.parametrize("override", ["192.0.2.1", "no-such-interface", "", "lo0", "256.1.1.1", "2001:db8::7"])
def test_another_override_is_refused_beside_what_there_is(override: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"'{override}' is neither an interface nor an address .*'lo': \['127.0.0.1"
    ):
        dialable("localhost", override=override)


# ---- interfaces and sockets ------------------------------------------------------------------------------------------


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    for interface, addresses in owned().items():
        for address in addresses:
            assert interface_of(address) == interface


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listening_socket_can_be_dialled(host: str) -> None:
    if host not in owned()["lo"]:
        pytest.skip(f"this host has no {host}")
    with listen(Address(host)) as first, listen(Address(host)) as second:
        assert first.getsockname()[0] == host
        assert first.getsockname()[1] != second.getsockname()[1]
        with socket.create_connection(first.getsockname()[:2]) as there, first.accept()[0] as here:
            there.sendall(b"hello")
            assert here.recv(5) == b"hello"


def test_an_address_of_another_host_cannot_be_listened_on() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        listen(Address("192.0.2.1"))
