"""The one authenticated connection of the project: framing, seals and proof of the key, for any payloads.

A server opens an ``Endpoint`` (addresses, port and a random key), which travels inside the task that it sends to its
workers. Only a holder of the endpoint is heard.

The wire, over TCP, integers big-endian, ``||`` is concatenation::

    server -> client    nonce                      32 random bytes, fresh for every connection
    either way          length || seal || payload  a frame: 4 bytes, 32 bytes, ``length`` bytes (at most 1 MiB)

    seal = HMAC-SHA256(key, side || nonce || hello || sequence || payload)
    side: "c" or "s", of the sender; sequence: 8 bytes, of the sender's own frames: 0, 1, ...

The client's frame 0 is the hello: ``{"hello":"<32 random hex digits>"}``, at most 256 bytes, within 5 seconds. In a
seal ``hello`` is the hello's payload, and empty in the hello's own. The server's frame 0 is the receipt of the hello.
Each side closes the connection at the first frame that is too long, out of sequence or wrongly sealed.

What this protects. Only a holder of the key is heard. A frame that was altered, repeated, left out, moved, sent back
or recorded from another connection is refused. A client believes only a server that proves, by its receipt, that it
holds the key, so an address where something else answers is passed over. A stranger learns a nonce and nothing more,
and holds one thread and a few kilobytes for at most 5 seconds; when too many strangers wait, the one that has waited
longest goes.

What it does not. Contents are authenticated, NOT encrypted: whoever can read the network can read them. The key is as
safe as the task it travels in, so the network of a cluster whose RPC is plain text must be trusted. All workers share
one key: a worker can speak for any rank. Who can cut the connection can keep the server from hearing. The guarantees
end with the process that holds the server; nothing here survives it.
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

__all__ = ["Connection", "Endpoint", "ProtocolError"]

MAX_FRAME = 1 << 20
"""Bytes of the largest payload, and so of the largest event."""
MAX_HELLO = 256
"""Bytes of the largest payload that is read from a connection that has not proved itself."""
NONCE_BYTES = SEAL_BYTES = KEY_BYTES = 32

_RECEIPT = b"receipt"
_DIGEST = "sha256"
_PIECE = 1 << 14  # bytes that are read at a time
_LENGTH = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and the key to it. Pickled into a task, it authenticates a process as a worker.

    Attributes:
        addresses: host names, IPv4 or IPv6 literals of the server, tried in this order.
        port: the TCP port.
        key: 32 random bytes; not shown by ``repr``.
    """

    addresses: tuple[str, ...]
    port: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InvalidInput("addresses is empty; give at least one host name or address that reaches the driver")
        if len(self.key) != KEY_BYTES:
            raise InvalidInput(f"an endpoint's key has {KEY_BYTES} bytes, this one has {len(self.key)}")


class ProtocolError(Exception):
    """The other side of a connection broke the protocol, or never kept it."""


class Connection:
    """One connection, the same on both sides; one thread sends and one thread receives at a time."""

    def __init__(self, connection: socket.socket, key: bytes, nonce: bytes, sides: tuple[bytes, bytes]) -> None:
        self.socket = connection
        self._key, self._session, self._sides = key, nonce, sides
        self._sent = self._received = 0
        self._ahead = bytearray()  # what was read of the next frames

    @classmethod
    def open(cls, address: str, endpoint: Endpoint, timeout: float) -> Connection:
        """Connect to one of the endpoint's addresses within ``timeout`` seconds (name resolution not counted).

        Raises:
            OSError: nobody who holds the key answers there.
        """
        deadline = time.monotonic() + timeout
        connection = socket.create_connection((address, endpoint.port), timeout)
        try:
            tune(connection)
            opened = cls(connection, endpoint.key, _nonce(connection, deadline), (b"c", b"s"))
            # The digits make the receipt unforeseeable: a recording of the server cannot answer.
            hello = b'{"hello":"%s"}' % secrets.token_hex(16).encode()
            opened.send([hello])
            opened._session += hello
            opened.receipt(deadline)
        except (ProtocolError, EOFError) as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        return opened

    @classmethod
    def accept(cls, connection: socket.socket, key: bytes, seconds: float) -> Connection:
        """Let a client prove itself, in all within ``seconds``; ``confirm`` then lets it in.

        Raises:
            ProtocolError: it proved nothing.
        """
        accepted = cls(connection, key, secrets.token_bytes(NONCE_BYTES), (b"s", b"c"))
        deadline = time.monotonic() + seconds
        try:
            connection.settimeout(seconds)
            connection.sendall(accepted._session)
            accepted._session += accepted.receive(MAX_HELLO, deadline)
        except (OSError, EOFError) as error:
            raise ProtocolError(f"a connection that proved nothing: {error}") from error
        connection.settimeout(None)
        return accepted

    def send(self, payloads: Sequence[bytes], deadline: float | None = None) -> None:
        """Send one frame for each payload.

        Args:
            payloads: of 1 byte to 1 MiB each.
            deadline: of the monotonic clock; None waits as long as the other side takes.

        Raises:
            OSError: the connection broke, or the other side did not take them in time; it is then of no more use.
        """
        if deadline is not None:
            self.socket.settimeout(_left(deadline))
        frames = []
        for payload in payloads:
            frames.append(_LENGTH.pack(len(payload)) + self._seal(self._sides[0], self._sent, payload) + payload)
            self._sent += 1
        self.socket.sendall(b"".join(frames))

    def receive(self, limit: int = MAX_FRAME, deadline: float | None = None) -> bytes:
        """Read the payload of the next frame.

        Args:
            limit: bytes it may have.
            deadline: of the monotonic clock; None waits without end.

        Raises:
            ProtocolError: it is too long or wrongly sealed.
            EOFError: the other side has closed the connection.
            TimeoutError: it was not there in full at ``deadline``.
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if not 0 < size <= limit:
            raise ProtocolError(f"a frame of {size} bytes where 1 to {limit} are allowed")
        seal = self._read(SEAL_BYTES, deadline)
        payload = self._read(size, deadline)
        if not hmac.compare_digest(seal, self._seal(self._sides[1], self._received, payload)):
            raise ProtocolError("a frame with a wrong seal: forged, replayed, out of sequence or for another key")
        self._received += 1
        return payload

    def confirm(self) -> None:
        """Send a receipt: all frames before it were received."""
        self.send([_RECEIPT])

    def receipt(self, deadline: float) -> None:
        """Wait for a receipt; raises what ``receive`` raises."""
        if self.receive(len(_RECEIPT), deadline) != _RECEIPT:
            raise ProtocolError("something else where a receipt was expected")

    def abort(self) -> None:
        """End what another thread is doing with this connection."""
        shut(self.socket)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _seal(self, side: bytes, sequence: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, side + self._session + _SEQUENCE.pack(sequence) + payload, _DIGEST)

    def _read(self, size: int, deadline: float | None) -> bytes:
        """Exactly ``size`` bytes; the deadline is for all of them, so that a trickle does not prolong it."""
        while len(self._ahead) < size:
            self._ahead += _piece(self.socket, _PIECE, deadline)
        data = bytes(self._ahead[:size])
        del self._ahead[:size]
        return data


def _piece(connection: socket.socket, most: int, deadline: float | None) -> bytes:
    """What has come, at least a byte and at most so many: never room for bytes that were only announced."""
    if deadline is not None:
        connection.settimeout(_left(deadline))
    piece = connection.recv(most)
    if not piece:
        raise EOFError("the other side closed the connection")
    return piece


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side took too long")
    return left


def _nonce(connection: socket.socket, deadline: float) -> bytes:
    nonce = b""
    while len(nonce) < NONCE_BYTES:
        nonce += _piece(connection, NONCE_BYTES - len(nonce), deadline)
    return nonce


def tune(connection: socket.socket) -> None:
    """Set what both sides want of a connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # receipts are small and waited for
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that lost power says no goodbye


def shut(connection: socket.socket) -> None:
    """End a connection that another thread is using; that thread wakes and closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it has ended already
        logger.debug("shutting a connection down: %s", error)
