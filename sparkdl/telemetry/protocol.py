"""The wire between the members of a gang and their driver: what an event is and how it travels.

The driver opens a ``Channel`` and puts its ``Endpoint`` (addresses, port and a random key) into the task that it
sends to the members. Whoever holds the endpoint is a member; nobody else is.

The wire, over TCP, integers big-endian, ``||`` is concatenation::

    driver -> member    nonce                      32 random bytes, fresh for every connection
    member -> driver    length || seal || payload  a frame: 4 bytes, 32 bytes, ``length`` bytes (at most 1 MiB)
    driver -> member    receipt                    32 bytes, one for every frame, in the frames' order

    seal    = HMAC-SHA256(key, nonce || sequence || payload)   sequence: 8 bytes, 0 for the first frame, then 1, ...
    receipt = HMAC-SHA256(key, "receipt" || seal)

Frame 0 is the hello: ``{"hello": "<32 random hex digits>"}``, at most 256 bytes, within 5 seconds. Every later payload
is one event as UTF-8 JSON. The driver closes a connection at the first frame that is too long, out of sequence,
wrongly sealed or no event. A receipt is sent once the listener has returned; frames that come together are answered
together.

What this protects. Only a holder of the key is heard. A frame that was altered, repeated, left out, moved or recorded
from another connection is refused. A member believes only a driver that proves, by its receipts, that it holds the
key, so an address where something else answers is passed over. A stranger learns a nonce and nothing more, and holds
one thread and a few kilobytes for at most 5 seconds; when too many strangers wait, the one that has waited
longest goes.

What it does not. Contents are authenticated, NOT encrypted: whoever can read the network can read the events. The key
is as safe as the task it travels in, so the network of a cluster whose RPC is plain text must be trusted. All members
share one key: a member can speak for any rank. Who can cut the connection can keep the driver from hearing. The
guarantees end with the process that holds the channel; nothing here survives the driver.
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

__all__ = ["Connection", "Endpoint", "ProtocolError", "Wire"]

MAX_FRAME = 1 << 20
"""Bytes of the largest payload, and so of the largest event."""
MAX_HELLO = 256
"""Bytes of the largest payload that is read from a connection that has not proved itself."""
NONCE_BYTES = SEAL_BYTES = KEY_BYTES = 32

_DIGEST = "sha256"
_PIECE = 1 << 14  # bytes that are read at a time
_LENGTH = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """Where a channel listens, and the key to it. Pickled into a task, it is what makes a process a member.

    Attributes:
        addresses: host names, IPv4 or IPv6 literals of the driver, tried in this order.
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


@dataclass
class Wire:
    """One connection, from either side, once the nonce is known."""

    connection: socket.socket
    key: bytes
    nonce: bytes
    sequence: int = 0
    _ahead: bytearray = field(default_factory=bytearray)  # what was read of the next frames

    @property
    def more(self) -> bool:
        """Whether something of the next frame is here already."""
        return bool(self._ahead)

    def _seal(self, payload: bytes) -> bytes:
        seal = hmac.digest(self.key, self.nonce + _SEQUENCE.pack(self.sequence) + payload, _DIGEST)
        self.sequence += 1
        return seal

    def _receipt(self, seal: bytes) -> bytes:
        return hmac.digest(self.key, b"receipt" + seal, _DIGEST)

    def send(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Send one frame for each payload and return their seals."""
        seals = [self._seal(payload) for payload in payloads]
        parts = [_LENGTH.pack(len(payload)) + seal + payload for payload, seal in zip(payloads, seals, strict=True)]
        self.connection.sendall(b"".join(parts))
        return seals

    def receive(self, limit: int, deadline: float | None = None) -> tuple[bytes, bytes]:
        """Read the next frame of at most ``limit`` payload bytes and return its payload and its seal.

        Raises:
            ProtocolError: it is too long or wrongly sealed.
            EOFError: the other side has closed the connection.
            TimeoutError: it was not there in full at ``deadline`` (of the monotonic clock).
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if not 0 < size <= limit:
            raise ProtocolError(f"a frame of {size} bytes where 1 to {limit} are allowed")
        seal = self._read(SEAL_BYTES, deadline)
        payload = self._read(size, deadline)
        if not hmac.compare_digest(seal, self._seal(payload)):
            raise ProtocolError("a frame with a wrong seal: forged, replayed, out of sequence or for another key")
        return payload, seal

    def confirm(self, seals: Sequence[bytes]) -> None:
        """Send the receipts for the frames with these seals."""
        self.connection.sendall(b"".join(map(self._receipt, seals)))

    def confirmed(self, seal: bytes, deadline: float) -> None:
        """Wait for the receipt for the frame with this seal; raises what ``receive`` raises."""
        if not hmac.compare_digest(self._read(SEAL_BYTES, deadline), self._receipt(seal)):
            raise ProtocolError("a wrong receipt: whoever answers does not hold the key")

    def _read(self, size: int, deadline: float | None) -> bytes:
        """Exactly ``size`` bytes; the deadline is for all of them, so that a trickle does not prolong it."""
        while len(self._ahead) < size:
            self._ahead += _piece(self.connection, _PIECE, deadline)
        data = bytes(self._ahead[:size])
        del self._ahead[:size]
        return data


def _piece(connection: socket.socket, most: int, deadline: float | None) -> bytes:
    """What has come, at least a byte and at most so many: never room for bytes that were only announced."""
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side took too long")
        connection.settimeout(left)
    piece = connection.recv(most)
    if not piece:
        raise EOFError("the other side closed the connection")
    return piece


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


class Connection:
    """A member's side of the wire, after both sides have proved that they hold the key."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

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
            wire = Wire(connection, endpoint.key, _nonce(connection, deadline))
            # The digits make the receipt unforeseeable: a recording of the driver cannot answer.
            (seal,) = wire.send([b'{"hello":"%s"}' % secrets.token_hex(16).encode()])
            wire.confirmed(seal, deadline)
        except (ProtocolError, EOFError) as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        return cls(wire)

    def send(self, payloads: Sequence[bytes], timeout: float) -> int:
        """Send, and wait for the receipts.

        Returns:
            How many payloads, from the first, the driver is known to have. Fewer than given: the connection is of no
            more use, and the driver may have the others or not.
        """
        deadline, count = time.monotonic() + timeout, 0
        try:
            self._wire.connection.settimeout(timeout)
            for seal in self._wire.send(payloads):
                self._wire.confirmed(seal, deadline)
                count += 1
        except (OSError, EOFError, ProtocolError) as error:
            logger.debug("the connection to the driver broke: %s", error)
        return count

    def abort(self) -> None:
        """End what another thread is doing with this connection."""
        shut(self._wire.connection)

    def close(self) -> None:
        """Close the connection; nothing is in flight, since ``send`` waits for its receipts."""
        self._wire.connection.close()
