"""The project's one authenticated connection: framing, seals and proof of the key, for any payload.

A server opens an ``Endpoint`` (addresses, port and a random key). The endpoint travels inside the task to the workers.
The server accepts only its holders.

The wire, over TCP, integers big-endian, ``||`` is concatenation::

    server -> client    nonce                      32 random bytes, fresh for every connection
    either way          length || seal || payload  a frame: 4 bytes, 32 bytes, ``length`` bytes (at most 1 MiB)
    either way          body                       plain bytes after a frame whose payload, the head, announces them

    seal = HMAC-SHA256(key, side || nonce || hello || sequence || payload)
    side: "c" or "s", of the sender; sequence: 8 bytes, of the sender's own frames: 0, 1, ...

The client's frame 0 is the hello: ``{"hello":"<32 random hex digits>"}``, at most 256 bytes, within 5 seconds. In a
seal ``hello`` is the hello's payload, and empty in the hello's own. The server's frame 0 is the receipt of the hello.
Each side closes the connection at the first frame that is too long, out of sequence or wrongly sealed.

Protection: both sides prove that they hold the key, the server by its receipt; a client skips addresses where another
program answers. A frame that was altered, repeated, omitted, reordered, reflected or recorded from another connection
is rejected. A stranger learns a nonce, and occupies one thread and a few kilobytes for at most 5 seconds. If too many
strangers wait, the longest waiting one is closed.

Limits: contents are authenticated, NOT encrypted: anyone on the network can read them. Bodies are not authenticated
either: they are as open as gloo's tensors, and to seal them would take several times as long as to send them. The key
is as safe as its task: if the cluster's RPC is plain text, its network must be trusted. All workers share one key, so
a worker can impersonate any rank. An attacker who can cut the connection can silence a worker. The guarantees end with
the server's process.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkdl.errors import InvalidInput

MAX_FRAME = 1 << 20
"""Bytes of the largest payload, and so of the largest event."""
MAX_HELLO = 256
"""Bytes of the largest payload that an unproven connection may send."""
NONCE_BYTES = SEAL_BYTES = KEY_BYTES = 32

_RECEIPT = b"receipt"
_DIGEST = "sha256"
_CHUNK = 1 << 14  # bytes read at a time
_LENGTH = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """Addresses and key of a server; pickled into a task, it authenticates a process as a worker."""

    addresses: tuple[str, ...]  # host names, IPv4 or IPv6 literals, tried in this order
    port: int
    key: bytes = field(repr=False)  # 32 random bytes

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InvalidInput("addresses is empty; give at least one host name or address that reaches the driver")
        if len(self.key) != KEY_BYTES:
            raise InvalidInput(f"the endpoint's key has {len(self.key)} bytes; expected {KEY_BYTES}")


class ProtocolError(Exception):
    """The other side of a connection violated the protocol."""


class Connection:
    """One connection, for client and server; one thread may send while another receives."""

    def __init__(self, connection: socket.socket, key: bytes, nonce: bytes, sides: tuple[bytes, bytes]) -> None:
        self.socket = connection
        self._key, self._session, self._sides = key, nonce, sides
        self._sent = self._received = 0
        self._ahead = bytearray()  # bytes of later frames that were already read

    @classmethod
    def open(cls, address: str, endpoint: Endpoint, timeout: float) -> Connection:
        """Connect within ``timeout`` seconds, plus name resolution; raises OSError if no holder of the key answers."""
        deadline = time.monotonic() + timeout
        connection = socket.create_connection((address, endpoint.port), timeout)
        try:
            tune(connection)
            opened = cls(connection, endpoint.key, b"", (b"c", b"s"))
            opened._session = opened._read(NONCE_BYTES, deadline)
            # The random digits make the receipt unpredictable, so a recorded server cannot answer.
            hello = b'{"hello":"%s"}' % secrets.token_hex(16).encode()
            opened.send([hello])
            opened._session += hello
            opened.receipt(deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, (ProtocolError, EOFError)):
                raise ConnectionError(str(error)) from error
            raise
        return opened

    @classmethod
    def accept(cls, connection: socket.socket, key: bytes, seconds: float) -> Connection:
        """Authenticate a client within ``seconds``, before ``confirm``; raises ProtocolError if it lacks the key."""
        accepted = cls(connection, key, secrets.token_bytes(NONCE_BYTES), (b"s", b"c"))
        deadline = time.monotonic() + seconds
        try:
            tune(connection)
            connection.settimeout(seconds)
            connection.sendall(accepted._session)
            accepted._session += accepted.receive(MAX_HELLO, deadline)
        except (OSError, EOFError) as error:
            raise ProtocolError(f"the client did not prove that it holds the key: {error}") from error
        connection.settimeout(None)
        return accepted

    def send(self, payloads: Sequence[bytes], deadline: float | None = None) -> None:
        """Send one frame per payload of 1 byte to 1 MiB, until ``deadline`` (monotonic; default: none).

        If the connection breaks or the deadline passes, raises OSError, and the connection is unusable.
        """
        if deadline is not None:
            self.socket.settimeout(_left(deadline))
        frames = bytearray()
        for payload in payloads:
            frames += _LENGTH.pack(len(payload)) + self._seal(self._sides[0], self._sent, payload) + payload
            self._sent += 1
        self.socket.sendall(frames)

    def receive(self, limit: int = MAX_FRAME, deadline: float | None = None) -> bytes:
        """Read the next frame's payload, of at most ``limit`` bytes, until ``deadline`` (monotonic; default: none).

        Raises ProtocolError for a frame that is too long or wrongly sealed, EOFError if the other side closed the
        connection, and TimeoutError at ``deadline``.
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if not 0 < size <= limit:
            raise ProtocolError(f"a frame has {size} bytes; expected 1 to {limit}")
        seal = self._read(SEAL_BYTES, deadline)
        payload = self._read(size, deadline)
        if not hmac.compare_digest(seal, self._seal(self._sides[1], self._received, payload)):
            raise ProtocolError("a frame has a wrong seal: it is forged, replayed, out of sequence or of another key")
        self._received += 1
        return payload

    def send_body(self, head: bytes, body: memoryview, deadline: float | None = None) -> None:
        """Send a frame, then a body without a copy; arguments and errors are as of ``send``."""
        self.send([head], deadline)
        self.socket.sendall(body)

    def receive_body(self, buffer: memoryview, deadline: float | None = None) -> None:
        """Fill a buffer with a body; raises TimeoutError if nothing comes for the time left, else as ``receive``."""
        size = min(len(buffer), len(self._ahead))
        buffer[:size] = self._ahead[:size]
        del self._ahead[:size]
        if deadline is not None:
            self.socket.settimeout(_left(deadline))
        while size < len(buffer):
            received = self.socket.recv_into(buffer[size:], 0, socket.MSG_WAITALL)
            if not received:
                raise EOFError("the other side closed the connection")
            size += received

    def confirm(self) -> None:
        """Send a receipt: all earlier frames have arrived."""
        self.send([_RECEIPT])

    def receipt(self, deadline: float) -> None:
        """Wait for a receipt; raises what ``receive`` raises."""
        if self.receive(len(_RECEIPT), deadline) != _RECEIPT:
            raise ProtocolError("expected a receipt, got another frame")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _seal(self, side: bytes, sequence: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, side + self._session + _SEQUENCE.pack(sequence) + payload, _DIGEST)

    def _read(self, size: int, deadline: float | None) -> bytes:
        while len(self._ahead) < size:
            if deadline is not None:
                self.socket.settimeout(_left(deadline))
            received = self.socket.recv(_CHUNK)  # memory is never reserved for announced bytes
            if not received:
                raise EOFError("the other side closed the connection")
            self._ahead += received
        data = bytes(self._ahead[:size])
        del self._ahead[:size]
        return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side missed the deadline")
    return left


def tune(connection: socket.socket) -> None:
    """Set the socket options of both sides."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # receipts are small and urgent
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that loses power closes nothing


def shut(connection: socket.socket) -> None:
    """Interrupt the thread that uses a connection; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # already closed
        logger.debug("shutting a connection down: %s", error)
