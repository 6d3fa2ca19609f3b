"""Workers' connections in one process, and the judgement of their reports."""

from __future__ import annotations

import pytest

from sparkdl.cli.doctor.connections import (
    ConnectionReport,
    WorkerAddress,
    absent_check,
    connect,
    connections_check,
    interface_check,
    link_check,
    measure_next,
    representatives,
)
from sparkdl.cli.doctor.link import LinkSpeed
from sparkdl.net.addresses import listen

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
    assert connections_check([ConnectionReport(ONE), ConnectionReport(TWO)]).text == "all 2 connections between 2 hosts"
    assert connections_check([ConnectionReport(ONE), ConnectionReport(ONE)]).text == "all workers are on one host"
    check = connections_check(
        [ConnectionReport(ONE, {1: "no answer within 5 s"}), ConnectionReport(TWO), ConnectionReport(LOST)]
    )
    assert check.status == "FAIL"
    assert check.text.startswith(
        "one (10.0.0.1, eth0) cannot connect to two (10.0.0.2, eth0): no answer within 5 s. Open all ports"
    )
    assert connections_check([ConnectionReport(ONE), ConnectionReport(LOST)]).status == "skip"


# ---- links ----------------------------------------------------------------------------------------------------------


def test_one_worker_per_host_measures_the_link_to_the_next(monkeypatch):
    monkeypatch.setattr("sparkdl.cli.doctor.connections.measure", lambda *destination: destination)
    workers = [ONE, ONE, TWO, LOST]
    assert [measure_next(workers, rank) for rank in range(4)] == [
        (2, "10.0.0.2", 4002),
        None,
        (0, "10.0.0.1", 4001),
        None,
    ]
    assert measure_next([ONE, ONE], 0) is None


def test_slowest_link_gives_the_arguments_of_plan():
    check = link_check(
        [ConnectionReport(ONE, {}, LinkSpeed(1, 941.23, 1e-4)), ConnectionReport(TWO, {}, LinkSpeed(0, 93.7, 5.21e-5))]
    )
    assert check.status == "ok"
    assert check.text == (
        "the slowest of 2 links is from two (10.0.0.2, eth0) to one (10.0.0.1, eth0); "
        "sparkdl plan --bandwidth 93.7 --latency 0.0001"
    )
    assert link_check([ConnectionReport(ONE), ConnectionReport(ONE)]).text == "all workers are on one host"


def test_link_without_data_fails_and_missing_connections_skip_it():
    check = link_check([ConnectionReport(ONE, {}, LinkSpeed(1, error="no data within 5 s")), ConnectionReport(TWO)])
    assert check.status == "FAIL"
    assert check.text.startswith(
        "one (10.0.0.1, eth0) to two (10.0.0.2, eth0): no data within 5 s. The hosts connect, but"
    )
    for report in (ConnectionReport(ONE, {1: "no answer within 5 s"}), ConnectionReport(LOST)):
        assert link_check([report, ConnectionReport(TWO)]).status == "skip"
