"""What strangers send is not heard, and what members send arrives in order.

Strangers and members speak the wire format by hand here, from its description in ``sparkdl.telemetry.protocol``, so
that the format cannot change unseen.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.telemetry import server as server_module
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.protocol import Endpoint
from sparkdl.telemetry.recorder import Recorder
from tests.listening import LONG, Seen, nothing_left, still_works, values

pytestmark = pytest.mark.timeout(60)

HELLO = b'{"hello":"00"}'
RECEIPT = 4 + 32 + len(b"receipt")


class Raw:
    """A connection to a channel, made by hand; with the key it can be a member."""

    def __init__(self, endpoint: Endpoint, key: bytes | None = None, buffer: int = 0) -> None:
        self.key = endpoint.key if key is None else key
        self.socket = socket.socket()
        self.socket.settimeout(LONG)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.socket.connect((endpoint.addresses[0], endpoint.port))
        self.nonce = self.read(32)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data)) or pytest.fail("closed too early")
        return data

    def frame(self, sequence: int, payload: bytes, side: bytes = b"c") -> bytes:
        session = self.nonce if side == b"c" and not sequence else self.nonce + HELLO
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
        with self.socket:
            try:
                while piece := self.socket.recv(1 << 16):
                    data += piece
            except ConnectionResetError:  # closed with something unread
                return data
        return data


class Proxy:
    """Carries one connection to a channel and remembers what each side said."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(("127.0.0.1",), self._server.getsockname()[1], endpoint.key)
        self.said: dict[str, bytes] = {"member": b"", "driver": b""}
        self._thread = threading.Thread(target=self._carry, args=(endpoint,))
        self._thread.start()

    def _carry(self, endpoint: Endpoint) -> None:
        driver = socket.create_connection((endpoint.addresses[0], endpoint.port), LONG)
        member, _ = self._server.accept()
        with driver, member, self._server:
            sides = {member: ("member", driver), driver: ("driver", member)}
            while sides:
                for side in select.select(list(sides), [], [], LONG)[0]:
                    name, other = sides[side]
                    piece = side.recv(1 << 16)
                    self.said[name] += piece
                    if not piece:
                        return
                    other.sendall(piece)

    def recorded(self) -> dict[str, bytes]:
        self._thread.join(LONG)
        return self.said


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def channel(seen: Seen) -> Iterator[Channel]:
    with Channel(seen, session="test") as channel:
        yield channel


def test_ipv6(seen: Seen) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with Channel(seen, addresses=("::1",), bind="::1") as channel:
        still_works(channel, seen)
    with Channel(seen, addresses=["::1"], bind="::") as channel:
        still_works(channel, seen)


def test_each_address_is_tried(seen: Seen) -> None:
    addresses = ("no-such-host.invalid", "x" * 70, "127.0.0.1")
    with Channel(seen, addresses=addresses) as channel:
        still_works(channel, seen)


def test_a_listener_that_raises_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def listener(event: Event) -> None:
        raise RuntimeError("no room")

    with Channel(listener) as channel, Recorder(channel.endpoint, rank=0) as recorder:
        for _ in range(3):
            recorder.record("value")
        recorder.close()
        assert channel.received == 3
        assert (channel.refused, recorder.dropped) == (0, 0)
    assert len(caplog.records) == 1
    assert "no room" in caplog.text


def test_a_listener_cannot_close_its_channel(caplog: pytest.LogCaptureFixture) -> None:
    channels: list[Channel] = []
    with Channel(lambda event: channels[0].close()) as channel, Recorder(channel.endpoint, rank=0) as recorder:
        channels.append(channel)
        recorder.record("value")
        recorder.close()
    assert "another thread" in caplog.text


def test_many_members_one_call_at_a_time() -> None:
    alone, overlaps = threading.Lock(), []

    def listener(event: Event) -> None:
        if not alone.acquire(blocking=False):
            overlaps.append(event)
            return
        alone.release()

    def member(endpoint: Endpoint, rank: int) -> None:
        with Recorder(endpoint, rank=rank) as recorder:
            for value in range(50):
                recorder.record("value", value=value)

    with Channel(listener) as channel:
        threads = [threading.Thread(target=member, args=(channel.endpoint, rank)) for rank in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert channel.received == 12 * 50
    assert not overlaps


def test_an_endpoint_travels_and_hides_its_key(channel: Channel) -> None:
    assert pickle.loads(pickle.dumps(channel.endpoint)) == channel.endpoint  # noqa: S301 - our own bytes
    assert repr(channel.endpoint.key) not in repr(channel.endpoint)
    assert "key" not in repr(channel.endpoint)
    assert len(channel.endpoint.key) == 32


@pytest.mark.parametrize("wrong", [{"bind": "192.0.2.1"}, {"bind": "no such host"}, {"addresses": ()}])
def test_a_channel_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="address"):
        Channel(print, **wrong)  # type: ignore[arg-type]


def test_closing_twice_is_closing_once(channel: Channel) -> None:
    channel.close()
    channel.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", channel.endpoint.port), LONG)


# ---- strangers --------------------------------------------------------------------------------------------------

STRANGERS: dict[str, Callable[[Raw], bytes]] = {
    "says goodbye": lambda raw: b"",
    "speaks HTTP": lambda raw: b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    "says garbage": lambda raw: bytes(range(256)) * 5000,
    "announces 4 GiB": lambda raw: b"\xff" * 4 + bytes(32),
    "announces a frame before it has proved itself": lambda raw: struct.pack(">I", 1 << 20) + bytes(32),
    "announces nothing": lambda raw: bytes(36),
    "has another key": lambda raw: raw.frame(0, HELLO),
    "stops in the middle": lambda raw: raw.frame(0, HELLO)[:20],
}


@pytest.mark.parametrize("speech", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_gets_nothing(speech: Callable[[Raw], bytes], channel: Channel, seen: Seen) -> None:
    stranger = Raw(channel.endpoint, key=bytes(32))
    still_works(channel, seen)
    stranger.send(speech(stranger))
    with contextlib.suppress(OSError):  # put out already
        stranger.socket.shutdown(socket.SHUT_WR)
    assert stranger.rest() == b""
    assert channel.refused == 1
    still_works(channel, seen)


@pytest.mark.parametrize("trickle", [False, True], ids=["silent", "a byte at a time"])
def test_a_slow_stranger_is_put_out(
    trickle: bool, channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.3)
    stranger = Raw(channel.endpoint)
    still_works(channel, seen)
    speech = iter(struct.pack(">I", 256) + bytes(288))
    while trickle and not select.select([stranger.socket], [], [], 0.02)[0]:
        stranger.send(bytes([next(speech)]))
    assert stranger.rest() == b""
    assert channel.refused == 1
    still_works(channel, seen)


def test_of_too_many_strangers_the_first_go(channel: Channel, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_PENDING", 4)
    threads = threading.active_count()
    strangers = [Raw(channel.endpoint) for _ in range(20)]
    for stranger in strangers[:16]:
        assert stranger.rest() == b""
    assert threading.active_count() <= threads + 6
    still_works(channel, seen)  # which puts out the seventeenth
    assert channel.refused in (16, 17)
    late = strangers[-1].join()  # three are still welcome to prove themselves
    late.socket.close()
    for stranger in strangers[16:-1]:
        stranger.socket.close()


def test_a_member_that_never_reads_blocks_nobody(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least the system has
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    monkeypatch.setattr(server_module, "tune", narrow)
    with Channel(seen) as channel:
        raw = Raw(channel.endpoint, buffer=1).join()
        speech = b"".join(raw.frame(sequence, b"?") for sequence in range(1, 50_000))
        raw.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):  # the channel takes no more questions than it can answer
            raw.socket.sendall(speech)
        still_works(channel, seen)
        assert channel.refused == 0
    raw.socket.close()


def test_a_recorded_session_is_refused(channel: Channel, seen: Seen) -> None:
    proxy = Proxy(channel.endpoint)
    with Recorder(proxy.endpoint, rank=0) as recorder:
        recorder.record("value", value=1)
    assert (recorder.dropped, channel.received) == (0, 1)
    said = proxy.recorded()
    assert b'"value":1' in said["member"]
    raw = Raw(channel.endpoint)
    raw.send(said["member"])
    assert raw.rest() == b""
    assert (channel.refused, channel.received) == (1, 1)
    still_works(channel, seen)


def test_a_recorded_driver_is_not_believed(seen: Seen) -> None:
    with Channel(seen, addresses=("127.0.0.2", "127.0.0.1")) as channel:
        proxy = Proxy(Endpoint(("127.0.0.1",), channel.endpoint.port, channel.endpoint.key))
        with Recorder(proxy.endpoint, rank=0) as recorder:
            recorder.record("value", value=1)
        said = proxy.recorded()["driver"]
        assert len(said) == 32 + 2 * RECEIPT
        with closing(socket.create_server(("127.0.0.2", channel.endpoint.port))) as impostor:
            answer = threading.Thread(target=lambda: impostor.accept()[0].sendall(said))
            answer.start()
            still_works(channel, seen)
            answer.join(LONG)
        assert channel.refused == 0


ONE, TWO = (Event("value", 0, 0, 0.0, None, {"value": value}).to_json().encode() for value in (1, 2))
FORGERIES: dict[str, Callable[[Raw], bytes]] = {
    "altered": lambda raw: raw.frame(1, ONE).replace(b'"value":1', b'"value":9'),
    "sealed with another nonce": lambda raw: raw.frame(1, ONE)[:4] + bytes(32) + ONE,
    "repeated": lambda raw: raw.frame(1, ONE) * 2,
    "left out": lambda raw: raw.frame(2, TWO),
    "moved": lambda raw: raw.frame(2, TWO) + raw.frame(1, ONE),
    "too long": lambda raw: raw.frame(1, b" " * (1 << 20) + ONE),
    "sent back": lambda raw: raw.receipt(1),
    "no event": lambda raw: raw.frame(1, b'{"kind":1}'),
}


@pytest.mark.parametrize("speech", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_frame_ends_its_connection(speech: Callable[[Raw], bytes], channel: Channel, seen: Seen) -> None:
    raw = Raw(channel.endpoint).join()
    raw.send(speech(raw))
    assert raw.rest() == b""
    assert channel.refused == 1
    assert values(seen.events) == ([1] if speech is FORGERIES["repeated"] else [])
    still_works(channel, seen)


# ---- repeats ----------------------------------------------------------------------------------------------------


def numbered(number: int, recorder: str = "one") -> bytes:
    event = Event("value", 0, 0, 0.0, None, {"value": number}, recorder=recorder, number=number)
    return event.to_json().encode()


def test_an_event_that_is_sent_again_is_dropped(channel: Channel, seen: Seen) -> None:
    first, again = Raw(channel.endpoint).join(), Raw(channel.endpoint).join()
    for raw, numbers in ((first, (1, 2)), (again, (1, 2, 3, 5))):
        speech = [*map(numbered, numbers), numbered(1, recorder="other" + str(numbers)), b"?"]
        raw.send(b"".join(raw.frame(sequence, payload) for sequence, payload in enumerate(speech, start=1)))
        assert raw.read(RECEIPT) == raw.receipt(1)
        raw.socket.close()
    assert values(seen.events) == [1, 2, 1, 3, 5, 1]


def test_signs_of_life_are_not_counted(channel: Channel, seen: Seen) -> None:
    with Recorder(channel.endpoint, rank=0) as recorder:
        for kind in ("started", "heartbeat", "heartbeat", "value"):
            recorder.record(kind)
    assert [(event.kind, event.number) for event in seen.events] == [
        ("started", 1),
        ("heartbeat", 0),
        ("heartbeat", 0),
        ("value", 2),
    ]
    assert recorder.told.last == 2


def test_a_receipt_comes_when_it_is_asked_for_and_not_before(channel: Channel, seen: Seen) -> None:
    raw = Raw(channel.endpoint).join()
    raw.send(raw.frame(1, numbered(1)))
    seen.wait(1)
    assert not select.select([raw.socket], [], [], 0.05)[0]
    raw.send(raw.frame(2, b"?"))
    assert raw.read(RECEIPT) == raw.receipt(1)
    raw.socket.close()
