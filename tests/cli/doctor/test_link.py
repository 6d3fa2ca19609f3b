"""Streams between two ends on this machine: figures, and faults of the receiver."""

import socket

import pytest

from sparkdl.cli.doctor import link
from sparkdl.cli.doctor.link import answer_measurements, measure
from sparkdl.io.threads import in_background
from sparkdl.net.addresses import listen


@pytest.fixture
def listening():
    with listen("127.0.0.1") as listening:
        yield listening


def test_bandwidth_and_latency_after_a_connection_without_data(listening, monkeypatch):
    monkeypatch.setattr(link, "_BYTES", 1 << 20)
    with answer_measurements(listening):
        socket.create_connection(listening.getsockname()).close()
        speeds = [measure(rank, *listening.getsockname()) for rank in (1, 2)]
    assert [(speed.rank, speed.error) for speed in speeds] == [(1, ""), (2, "")]
    assert min(figure for speed in speeds for figure in (speed.bandwidth, speed.latency)) > 0


def test_stream_ends_in_time_on_a_slow_link(listening, monkeypatch):
    monkeypatch.setattr(link, "_BEFORE", 0.0)
    monkeypatch.setattr(link, "_SECONDS", 1e-9)
    monkeypatch.setattr(link, "_BYTES", 1 << 60)
    with answer_measurements(listening):
        speed = measure(1, *listening.getsockname())
    assert speed.error == ""
    assert speed.bandwidth > 0


def test_receiver_that_does_not_answer(listening, monkeypatch):
    monkeypatch.setattr(link, "WAIT", 0.1)
    assert measure(1, *listening.getsockname()).error == "no data within 0.1 s"


def test_receiver_that_ends(listening):
    def end():
        connection, _ = listening.accept()
        connection.close()

    future = in_background(end, "end")
    speed = measure(1, *listening.getsockname())
    future.result()
    assert speed.error in ("the other worker ended the connection", "Connection reset by peer", "Broken pipe")


def test_receiver_that_stops_reading(listening, monkeypatch):
    monkeypatch.setattr(link, "WAIT", 0.2)
    monkeypatch.setattr(link, "_PINGS", 1)

    def answer_once():
        connection, _ = listening.accept()
        connection.sendall(connection.recv(1))
        return connection

    future = in_background(answer_once, "answer")
    assert measure(1, *listening.getsockname()).error == "no data within 0.2 s"
    future.result().close()
