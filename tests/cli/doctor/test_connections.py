"""Workers' connections in one process, and the judgement of their reports."""

from __future__ import annotations

from functools import partial
from unittest.mock import Mock

import pytest

from sparkdl.cli.doctor import connections
from sparkdl.cli.doctor.check_result import CheckResult
from sparkdl.cli.doctor.connections import ConnectionReport as Report
from sparkdl.cli.doctor.connections import WorkerAddress, connect, measure_next, representatives
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
    monkeypatch.setattr("socket.create_connection", Mock(side_effect=TimeoutError("timed out")))
    assert connect([ONE, TWO], 0, 5.0) == {1: "no answer within 5 s"}


def test_one_worker_per_host_measures_the_link_to_the_next(monkeypatch):
    monkeypatch.setattr("sparkdl.cli.doctor.connections.measure", lambda *destination: destination)
    measured = [measure_next([ONE, ONE, TWO, LOST], rank) for rank in range(4)]
    assert measured == [(2, "10.0.0.2", 4002), None, (0, "10.0.0.1", 4001), None]
    assert measure_next([ONE, ONE], 0) is None


def says(check: CheckResult, text: str) -> None:
    """A check has this status and text, or begins so if ``text`` ends with three dots."""
    found = f"{check.status} {check.text}"
    assert found.startswith(text[:-3]) if text.endswith("...") else found == text


LOOPBACK = [WorkerAddress(host, "127.0.0.1", "lo", 1) for host in ("one", "two")]
WAITED, SILENT = "no answer within 20 s", {1: "no answer within 5 s"}
STALLED = LinkSpeed(1, error="no data within 5 s")
MEASURED = [Report(ONE, {}, LinkSpeed(1, 941.23, 1e-4)), Report(TWO, {}, LinkSpeed(0, 93.7, 5.21e-5))]
SLOWEST = "the slowest of 2 links is from two (10.0.0.2, eth0) to one (10.0.0.1, eth0)"
absent = partial(connections.absent_check, size=4, errors=[WAITED] * 2)


@pytest.mark.parametrize(
    ("check", "given", "text"),
    [
        (connections.interface_check, [ONE, ONE, TWO], "ok a gang uses one (10.0.0.1, eth0); two (10.0.0.2, eth0)"),
        (connections.interface_check, [ONE, LOST], f"FAIL three: {LOST.error} Set spark.sparkdl...."),
        (connections.interface_check, LOOPBACK[:1], "ok ..."),
        (
            connections.interface_check,
            LOOPBACK,
            "FAIL one (127.0.0.1, lo): other hosts cannot reach a loopback address...",
        ),
        (absent, [ONE] * 2, f"FAIL 2 of 4 workers reached the driver, from one; {WAITED}. Look for executors..."),
        (connections.connections_check, [Report(ONE), Report(TWO)], "ok all 2 connections between 2 hosts"),
        (connections.connections_check, [Report(ONE), Report(ONE)], "ok all workers are on one host"),
        (
            connections.connections_check,
            [Report(ONE, SILENT), Report(TWO), Report(LOST)],
            "FAIL one (10.0.0.1, eth0) cannot connect to two (10.0.0.2, eth0): no answer within 5 s. Open all ports...",
        ),
        (connections.connections_check, [Report(ONE), Report(LOST)], "skip ..."),
        (connections.link_check, MEASURED, f"ok {SLOWEST}; sparkdl plan --bandwidth 93.7 --latency 0.0001"),
        (connections.link_check, [Report(ONE), Report(ONE)], "ok all workers are on one host"),
        (
            connections.link_check,
            [Report(ONE, {}, STALLED), Report(TWO)],
            "FAIL one (10.0.0.1, eth0) to two (10.0.0.2, eth0): no data within 5 s. The hosts connect, but...",
        ),
        (connections.link_check, [Report(ONE, SILENT), Report(TWO)], "skip ..."),
        (connections.link_check, [Report(LOST), Report(TWO)], "skip ..."),
    ],
)
def test_judgement_names_hosts_and_the_remedy(check, given, text):
    says(check(given), text)
