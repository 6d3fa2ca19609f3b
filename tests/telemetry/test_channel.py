"""Strangers send nothing to the listener, and workers' events arrive in order.

These tests speak the wire format by hand, from its description in ``sparkdl.net.protocol``, so that the format
cannot change unseen.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.net import protocol
from sparkdl.net import server as server_module
from sparkdl.net.protocol import Connection, Endpoint
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.recorder import Recorder
from tests.listening import LONG, still_works, values

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("nothing_is_left")]

HELLO = b'{"hello":"00"}'
RECEIPT = 4 + 32 + len(b"receipt")


class Raw:
    """A connection to a channel, made by hand; with the key it can be a worker."""

    def __init__(self, endpoint: Endpoint, key: bytes | None = None, buffer: int = 0) -> None:
        self.key = endpoint.key if key is None else key
        self.socket = socket.socket()
        self.socket.settimeout(LONG)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.socket.connect((endpoint.addresses[0], endpoint.port))
        self.nonce = self.read(32)
        self.session = self.nonce + HELLO

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data)) or pytest.fail("closed too early")
        return data

    def frame(self, sequence: int, payload: bytes, side: bytes = b"c") -> bytes:
        session = self.nonce if side == b"c" and not sequence else self.session
        seal = hmac.new(self.key, side + session + struct.pack(">Q", sequence) + payload, "sha256").digest()
        return struct.pack(">I", len(payload)) + seal + payload

    def receipt(self, sequence: int) -> bytes:
        return self.frame(sequence, b"receipt", side=b"s")

    def join(self) -> Raw:
        self.socket.sendall(self.frame(0, HELLO))
        assert self.read(RECEIPT) == self.receipt(0)
        return self

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the channel need not wait for all of it
            self.socket.sendall(data)

    def rest(self) -> bytes:
        """All that still comes before the channel closes the connection."""
        data = b""
        with self.socket, contextlib.suppress(ConnectionResetError):  # closed with something unread
            while received := self.socket.recv(1 << 16):
                data += received
        return data


def test_ipv6(seen):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    for bind in ("::1", "::"):
        with Channel(seen, addresses=("::1",), bind=bind) as channel:
            still_works(channel, seen)


def test_listener_cannot_close_its_channel(caplog):
    channels: list[Channel] = []
    with Channel(lambda event: channels[0].close()) as channel, Recorder(channel.endpoint, rank=0) as recorder:
        channels.append(channel)
        recorder.record("value")
        recorder.close()
    assert "another thread" in caplog.text


def test_endpoint_is_pickled_and_hides_its_key(channel):
    assert pickle.loads(pickle.dumps(channel.endpoint)) == channel.endpoint  # noqa: S301 - our own bytes
    assert "key" not in repr(channel.endpoint)
    assert len(channel.endpoint.key) == 32


@pytest.mark.parametrize("wrong", [{"bind": "192.0.2.1"}, {"bind": "no such host"}, {"addresses": ()}])
def test_invalid_address_raises(wrong):
    with pytest.raises(InvalidInput, match="address"):
        Channel(print, **wrong)


# ---- strangers --------------------------------------------------------------------------------------------------

STRANGERS: dict[str, Callable[[Raw], bytes]] = {
    "nothing": lambda raw: b"",
    "garbage": lambda raw: bytes(range(256)) * 5000,
    "a long frame before the proof": lambda raw: struct.pack(">I", 1 << 20) + bytes(32),
    "an empty frame": lambda raw: bytes(36),
    "another key": lambda raw: raw.frame(0, HELLO),
    "half a hello": lambda raw: raw.frame(0, HELLO)[:20],
}


@pytest.mark.parametrize("speech", STRANGERS.values(), ids=STRANGERS.keys())
def test_stranger_gets_nothing(speech, channel, seen):
    stranger = Raw(channel.endpoint, key=bytes(32))
    still_works(channel, seen)
    stranger.send(speech(stranger))
    with contextlib.suppress(OSError):  # closed already
        stranger.socket.shutdown(socket.SHUT_WR)
    assert stranger.rest() == b""
    assert channel.refused == 1
    still_works(channel, seen)


@pytest.mark.parametrize("trickle", [False, True], ids=["silent", "a byte at a time"])
def test_slow_stranger_times_out(trickle, channel, seen, monkeypatch):
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.3)
    stranger = Raw(channel.endpoint)
    still_works(channel, seen)
    speech = iter(struct.pack(">I", 256) + bytes(288))
    while trickle and not select.select([stranger.socket], [], [], 0.02)[0]:
        stranger.send(bytes([next(speech)]))
    assert stranger.rest() == b""
    assert channel.refused == 1
    still_works(channel, seen)


def test_too_many_strangers_evict_oldest(channel, seen, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_PENDING", 4)
    threads = threading.active_count()
    strangers = [Raw(channel.endpoint) for _ in range(20)]
    for stranger in strangers[:16]:
        assert stranger.rest() == b""
    assert threading.active_count() <= threads + 6
    still_works(channel, seen)  # which evicts the seventeenth
    assert channel.refused in (16, 17)
    strangers[-1].join().socket.close()  # the last three can still prove themselves
    for stranger in strangers[16:-1]:
        stranger.socket.close()


def test_worker_without_reads_blocks_nobody(seen, monkeypatch):
    def narrow(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least the system has
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    monkeypatch.setattr(protocol, "tune", narrow)
    with Channel(seen) as channel:
        raw = Raw(channel.endpoint, buffer=1).join()
        speech = b"".join(raw.frame(sequence, b"?") for sequence in range(1, 50_000))
        raw.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):  # the channel takes no more questions than it can answer
            raw.socket.sendall(speech)
        still_works(channel, seen)
        assert channel.refused == 0
    raw.socket.close()


ONE, TWO = (Event("value", 0, 0, 0.0, None, {"value": value}).to_json().encode() for value in (1, 2))


def test_replayed_session_is_rejected(channel, seen):
    first, again = Raw(channel.endpoint).join(), Raw(channel.endpoint)
    again.send(first.frame(0, HELLO) + first.frame(1, ONE))
    assert again.rest() == b""
    assert (channel.refused, seen.events) == (1, [])
    first.socket.close()


def test_replayed_driver_is_rejected(seen):
    with Channel(seen, addresses=("no-such-host.invalid", "x" * 70, "127.0.0.2", "127.0.0.1")) as channel:
        client = Connection.open("127.0.0.1", channel.endpoint, LONG)
        raw = Raw(replace(channel.endpoint, addresses=("127.0.0.1",))).join()
        raw.session = client._session
        recorded = raw.session[:32] + raw.receipt(0) + raw.receipt(1)
        client.close()
        raw.socket.close()
        with closing(socket.create_server(("127.0.0.2", channel.endpoint.port))) as impostor:
            answer = threading.Thread(target=lambda: impostor.accept()[0].sendall(recorded))
            answer.start()
            with Recorder(channel.endpoint, rank=0) as recorder:
                recorder.record("value", value=1)
            answer.join(LONG)
        assert (values(seen.events), recorder.counts.broken, channel.refused) == ([1], False, 0)


FIRST = 4 + 32 + len(HELLO)  # bytes of the worker's first frame
LENGTHENED = FIRST + 2  # the byte that announces 256 more bytes of an event, which never come


@pytest.mark.parametrize("place", [0, 3, 10, 40, FIRST, LENGTHENED, FIRST + 10, FIRST + 40, FIRST + 80])
def test_flipped_bit_is_noticed(place, channel, seen):
    raw = Raw(channel.endpoint)
    speech = bytearray(raw.frame(0, HELLO) + raw.frame(1, ONE))
    speech[place] ^= 1
    raw.send(speech)
    raw.socket.shutdown(socket.SHUT_WR)
    assert raw.rest() == (raw.receipt(0) if place >= FIRST else b"")
    assert (seen.events, channel.refused) == ([], place != LENGTHENED)


FORGERIES: dict[str, Callable[[Raw], bytes]] = {
    "repeated": lambda raw: raw.frame(1, ONE) * 2,
    "left out": lambda raw: raw.frame(2, TWO),
    "too long": lambda raw: raw.frame(1, b" " * (1 << 20) + ONE),
    "sent back": lambda raw: raw.receipt(1),
    "no event": lambda raw: raw.frame(1, b'{"kind":1}'),
}


@pytest.mark.parametrize("speech", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_frame_ends_its_connection(speech, channel, seen):
    raw = Raw(channel.endpoint).join()
    raw.send(speech(raw))
    assert raw.rest() == b""
    assert channel.refused == 1
    assert values(seen.events) == ([1] if speech is FORGERIES["repeated"] else [])


# ---- repeats ----------------------------------------------------------------------------------------------------


def numbered(number: int, recorder: str = "one") -> bytes:
    return Event("value", 0, 0, 0.0, None, {"value": number}, recorder=recorder, number=number).to_json().encode()


def test_repeated_event_is_dropped_and_receipt_comes_on_request(channel, seen):
    first, again = Raw(channel.endpoint).join(), Raw(channel.endpoint).join()
    for raw, numbers in ((first, (1, 2)), (again, (1, 2, 3, 5))):
        speech = [*map(numbered, numbers), numbered(1, recorder="other" + str(numbers)), b"?"]
        raw.send(b"".join(raw.frame(sequence, payload) for sequence, payload in enumerate(speech, start=1)))
        assert raw.read(RECEIPT) == raw.receipt(1)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.rest() == b""
    assert values(seen.events) == [1, 2, 1, 3, 5, 1]


def test_heartbeats_have_no_number(channel, seen):
    with Recorder(channel.endpoint, rank=0) as recorder:
        for kind in ("started", "heartbeat", "heartbeat", "value"):
            recorder.record(kind)
    numbers = [("started", 1), ("heartbeat", 0), ("heartbeat", 0), ("value", 2)]
    assert [(event.kind, event.number) for event in seen.events] == numbers
    assert recorder.counts.last == 2
