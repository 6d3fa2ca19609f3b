"""Workers' connections in one process, and the judgement of their reports."""

from __future__ import annotations

import pytest

from sparkdl.cluster.group.network import listen
from sparkdl.spark.diagnosis.connections import (
    Connected,
    WorkerAddress,
    absent_check,
    connect,
    connections_check,
    interface_check,
    representatives,
)

ONE, TWO = WorkerAddress("one", "10.0.0.1", "eth0", 4001), WorkerAddress("two", "10.0.0.2", "eth0", 4002)
LOST = WorkerAddress("three", error="'eth9' is neither an interface nor an address of this host.")


@pytest.fixture
def places():
    """Two hosts that listen, a second worker of the first one, and a host whose port is closed."""
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second:
        with listen("127.0.0.1") as closed:
            ports = [socket.getsockname()[1] for socket in (first, first, second, closed)]
        yield [WorkerAddress(host, "127.0.0.1", "lo", port) for host, port in zip("aabc", ports, strict=True)]


def test_one_worker_per_host_connects_to_all_others(places):
    assert representatives([*places, LOST]) == [0, 2, 3]
    assert [connect(places, rank) for rank in range(3)] == [{3: "Connection refused"}, {}, {3: "Connection refused"}]
    assert connect(places[:2], 0) == {}


def test_lost_packets_are_a_timeout(monkeypatch):
    def lose(address, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", lose)
    assert connect([ONE, TWO], 0, 5.0) == {1: "no answer within 5 s"}


def test_interface():
    assert interface_check([ONE, ONE, TWO]).text == "a gang uses one (10.0.0.1, eth0); two (10.0.0.2, eth0)"
    check = interface_check([ONE, LOST])
    assert check.status == "FAIL"
    assert check.text.startswith(
        "three: 'eth9' is neither an interface nor an address of this host. Set spark.sparkdl."
    )


def test_loopback_needs_a_single_host():
    loopback = [WorkerAddress(host, "127.0.0.1", "lo", 1) for host in ("one", "two")]
    assert interface_check(loopback[:1]).status == "ok"
    assert interface_check(loopback).text.startswith("one (127.0.0.1, lo): other hosts cannot reach a loopback address")


def test_workers_that_do_not_reach_the_driver():
    check = absent_check([ONE, ONE], 4, ["no answer within 20 s"] * 2)
    assert check.status == "FAIL"
    assert check.text.startswith(
        "2 of 4 workers reached the driver, from one; no answer within 20 s. Look for executors"
    )


def test_connections():
    assert connections_check([Connected(ONE), Connected(TWO)]).text == "all 2 connections between 2 hosts"
    assert connections_check([Connected(ONE), Connected(ONE)]).text == "all workers are on one host"
    check = connections_check([Connected(ONE, {1: "no answer within 5 s"}), Connected(TWO), Connected(LOST)])
    assert check.status == "FAIL"
    assert check.text.startswith(
        "one (10.0.0.1, eth0) cannot connect to two (10.0.0.2, eth0): no answer within 5 s. Open all ports"
    )
    assert connections_check([Connected(ONE), Connected(LOST)]).status == "skip"
