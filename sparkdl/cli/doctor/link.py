"""Bandwidth and latency of the links between hosts.

One worker of each host sends zeros to the worker of the next host. All send at the same time, as in a ring all-reduce.
So each link carries one stream in each direction. A stream ends after a second, and after 64 MiB on fast links.
"""

from __future__ import annotations

import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sparkdl.io.threads import in_background, watching

WAIT = 5.0
"""Seconds without data after which a stream fails."""
_PINGS = 20
_CHUNK = bytes(1 << 16)
_BEFORE, _BYTES_BEFORE = 0.2, 1 << 20  # seconds or bytes that do not count: TCP starts slowly
_SECONDS, _BYTES = 1.0, 64 << 20  # that count, at most
_REPLY = struct.Struct("!dd")  # bytes and seconds
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: discard what has not been sent
_POLL = 0.1  # seconds


@dataclass(frozen=True)
class LinkSpeed:
    """The measured link from a worker to another one.

    Attributes:
        rank: of the receiving worker.
        bandwidth: Mbit/s of a connection's data.
        latency: seconds, half of the median round trip of one byte.
        error: why there is no figure; empty if there is one.
    """

    rank: int
    bandwidth: float = 0.0
    latency: float = 0.0
    error: str = ""


@contextmanager
def answer_measurements(listening: socket.socket) -> Iterator[None]:
    """Answer measurements, and connections without data, until the block ends."""

    def serve(ended: threading.Event) -> None:
        listening.settimeout(_POLL)
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            in_background(partial(_answer, connection), "sparkdl link")

    with watching(serve, "sparkdl links"):
        yield


def measure(rank: int, address: str, port: int) -> LinkSpeed:
    """Measure the link to the worker ``rank``, which listens at ``address`` and ``port``."""
    try:
        with socket.create_connection((address, port), WAIT) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            latency = statistics.median(_round_trip(connection) for _ in range(_PINGS)) / 2
            size, seconds = _stream(connection)
    except TimeoutError:
        return LinkSpeed(rank, error=f"no data within {WAIT:g} s")
    except OSError as error:
        return LinkSpeed(rank, error=error.strerror or str(error))
    return LinkSpeed(rank, 8e-6 * size / seconds, latency)


def _round_trip(connection: socket.socket) -> float:
    begin = time.perf_counter()
    connection.sendall(b"\0")
    _exactly(connection, 1)
    return time.perf_counter() - begin


def _stream(connection: socket.socket) -> tuple[float, float]:
    while True:
        readable, writable, _ = select.select([connection], [connection], [], WAIT)
        if readable:
            size, seconds = _REPLY.unpack(_exactly(connection, _REPLY.size))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return size, seconds
        if not writable:
            raise TimeoutError
        connection.send(_CHUNK)


def _answer(connection: socket.socket) -> None:
    with connection:
        connection.settimeout(WAIT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            connection.sendall(_exactly(connection, 1))
        connection.sendall(_REPLY.pack(*_count(connection)))
        while connection.recv(len(_CHUNK)):  # until the sender closes
            pass


def _count(connection: socket.socket) -> tuple[float, float]:
    buffer = bytearray(1 << 18)
    started, before = time.perf_counter(), 0
    while before < _BYTES_BEFORE and time.perf_counter() - started < _BEFORE:
        before += _received(connection, buffer)
    begin, size, seconds = time.perf_counter(), 0, 0.0
    while size < _BYTES and seconds < _SECONDS:
        size += _received(connection, buffer)
        seconds = time.perf_counter() - begin
    return size, seconds


def _received(connection: socket.socket, buffer: bytearray) -> int:
    size = connection.recv_into(buffer)
    if not size:
        raise ConnectionError("the sender ended")
    return size


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other worker ended the connection")
        data += part
    return data
