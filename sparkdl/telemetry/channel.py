"""The driver's side of the one channel, and the events that it carries.

``sparkdl.telemetry.protocol`` says how they travel and what that protects, ``sparkdl.telemetry.emit`` how members
record them.
"""

from __future__ import annotations

import json
import logging
import numbers
import secrets
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.protocol import (
    KEY_BYTES,
    MAX_FRAME,
    MAX_HELLO,
    NONCE_BYTES,
    Endpoint,
    ProtocolError,
    Wire,
    shut,
    tune,
)

__all__ = ["Channel", "Event", "Listener", "plain"]

MAX_PENDING = 256
"""Connections that may be waiting to prove themselves; a gang of so many can connect in the same instant."""
BACKLOG = 1024
"""Connections that may be waiting to be accepted."""
MAX_RECEIPTS = 64
"""Events after which a member that goes on sending has its receipts."""
HANDSHAKE_SECONDS = 5.0
"""What a connection has, in all, to prove itself."""

_ATOMS = frozenset((str, int, float, bool, type(None)))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """A value or a span that happened on a member.

    Attributes:
        kind: what it is, for example ``"span"``; receivers pass over the kinds they do not know.
        rank: the member's rank in the gang.
        attempt: the attempt the gang is in, from 0.
        time: when, in unix seconds of the member's own wall clock.
        clock: the member's ``Clock`` as ``{"epoch", "step", "samples"}``, or None.
        payload: JSON values by name.
        host: the member's host; empty where that is not known.
        received: when the driver heard of it, in unix seconds of the driver's clock; None before that.
    """

    kind: str
    rank: int
    attempt: int
    time: float
    clock: dict[str, int] | None
    payload: dict[str, Any]
    host: str = ""
    received: float | None = field(default=None, compare=False)

    def to_json(self) -> str:
        """Write the event as one line of ASCII JSON of at most 1 MiB; never raises.

        Floats that are not finite are written as ``NaN`` and ``Infinity``, as Python's ``json`` reads them. A value
        that JSON has no form for becomes ``{"unserialisable": its type}``. The payload of an event that is too
        large becomes ``{"truncated": bytes of the whole event}``.
        """
        try:
            text = _encode(vars(self))
        except Exception as error:  # whatever a payload's own objects raise, recording must not
            text = _encode(vars(replace(self, clock=None, payload=_complaint(error))))
        if len(text) <= MAX_FRAME:
            return text
        return _encode(vars(replace(self, kind=self.kind[:MAX_HELLO], payload={"truncated": len(text)})))

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Read what ``to_json`` wrote; fields of a later version are passed over.

        Raises:
            InvalidInput: it is not an event.
        """
        try:
            found = json.loads(text)
            event = cls(
                **{name: found[name] for name in _TYPES}, **{name: found[name] for name in _LATER if name in found}
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidInput(f"expected an event as JSON, got {text[:80]!r}: {error!r}") from error
        for name, types in {**_TYPES, **_LATER}.items():
            if not isinstance(getattr(event, name), types):
                raise InvalidInput(f"an event's {name} cannot be {getattr(event, name)!r:.80}")
        return event


_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "rank": (int,),
    "attempt": (int,),
    "time": (int, float),
    "clock": (dict, type(None)),
    "payload": (dict,),
}
_LATER: dict[str, tuple[type, ...]] = {"host": (str,), "received": (int, float, type(None))}
"""Fields that events of earlier versions do not have."""


def plain(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Copy ``payload`` into JSON's own types, out of the reach of later changes to the original; never raises."""
    if all(type(value) in _ATOMS for value in payload.values()):
        return dict(payload)
    try:
        copy: dict[str, Any] = json.loads(_encode(payload))
        return copy
    except Exception as error:  # as in Event.to_json
        return _complaint(error)


def _substitute(value: object) -> object:
    if isinstance(value, numbers.Integral):  # NumPy's scalars among them
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return {"unserialisable": f"{type(value).__module__}.{type(value).__qualname__}"}


def _complaint(error: Exception) -> dict[str, Any]:
    return {"unserialisable": traceback.format_exception_only(error)[-1].strip()[:MAX_HELLO]}


_encode = json.JSONEncoder(separators=(",", ":"), default=_substitute).encode


class Listener:
    """Calls a function from many threads, one call at a time; logs the first exception and survives them all."""

    def __init__(self, call: Callable[[Event], None]) -> None:
        self._call = call
        self._lock = threading.RLock()
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Hand over one event."""
        with self._lock:
            try:
                self._call(event)
            except Exception:  # the listener's own fault must cost neither the channel nor the training
                if not self._failed:
                    logger.exception("the listener raised at an event %r; its later errors are not logged", event.kind)
                self._failed = True


class Channel:
    """The driver's side: listens for members and hands their events to one listener.

    Args:
        listener: called with every event, from the channel's threads, one call at a time; it must be quick, since
            all members wait for it, and must not close the channel. What it raises is logged once.
        addresses: the host names or literals by which members may reach this process, tried in this order.
        bind: the IPv4 or IPv6 literal or host name to listen on; ``"::"`` takes IPv4 as well where the system can.
        session: a name for log lines and threads.

    Attributes:
        endpoint: what members need to connect.
        received: events handed to the listener.
        refused: connections closed because they proved nothing, or because of a frame they sent.

    Raises:
        InvalidInput: no addresses are given, or ``bind`` is none of this host's addresses.
    """

    def __init__(
        self,
        listener: Callable[[Event], None],
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        bind: str = "127.0.0.1",
        session: str | None = None,
    ) -> None:
        self._name = f"sparkdl-channel-{session}" if session else "sparkdl-channel"
        self._listener = Listener(listener)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._pending: dict[socket.socket, threading.Thread] = {}
        self._threads: list[threading.Thread] = []
        self.received = 0
        self.refused = 0
        names = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        unbound = Endpoint(names, 0, secrets.token_bytes(KEY_BYTES))
        self._socket = _listen(bind)
        self.endpoint = replace(unbound, port=self._socket.getsockname()[1])
        self._alarm, self._wake = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name=self._name, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, end every connection and join every thread; a listener call in progress is waited for.

        Events that have no receipt yet go to their member's fallback. Calling it again does nothing.

        Raises:
            RuntimeError: called from the listener, which would wait for itself.
        """
        if threading.current_thread() in self._threads:
            raise RuntimeError("the listener cannot close the channel that is calling it; close it from another thread")
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._wake.send(b"x")
        self._accepting.join()
        with self._lock:
            for connection in self._connections:
                shut(connection)
        for thread in self._threads:
            thread.join()
        for each in (self._socket, self._alarm, self._wake):
            each.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._alarm, selectors.EVENT_READ)
            while True:
                selector.select()
                if self._closing.is_set():
                    return
                try:
                    connection, _ = self._socket.accept()
                except (BlockingIOError, ConnectionAbortedError):  # it went away before it was accepted
                    continue
                except OSError as error:  # no file descriptors left, most likely: do not spin on it
                    logger.warning("%s cannot accept a connection: %s", self._name, error)
                    self._closing.wait(0.1)
                    continue
                self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        """Give a new connection its thread, and put out the one that has waited longest if too many wait."""
        thread = threading.Thread(target=self._serve, args=(connection,), name=self._name, daemon=True)
        evicted = None
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            if len(self._pending) >= MAX_PENDING:
                oldest = next(iter(self._pending))
                evicted = self._pending.pop(oldest)
                shut(oldest)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread to give
                logger.warning("%s cannot serve a connection: %s", self._name, error)
                self.refused += 1
                connection.close()
            else:
                self._connections.add(connection)
                self._pending[connection] = thread
                self._threads.append(thread)
        if evicted is not None:
            evicted.join()  # it has proved nothing, so it is not in the listener and ends at once

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._hear(self._admit(connection))
            except (ProtocolError, InvalidInput) as error:
                self._refuse(error)
            except (OSError, EOFError) as error:
                logger.debug("%s: a member's connection ended: %s", self._name, error)
            finally:
                with self._lock:
                    self._connections.discard(connection)
                    self._pending.pop(connection, None)

    def _hear(self, wire: Wire) -> None:
        heard: list[bytes] = []
        try:
            while True:
                payload, seal = wire.receive(MAX_FRAME)
                event = replace(Event.from_json(payload), received=time.time())
                with self._lock:
                    self.received += 1
                self._listener(event)
                heard.append(seal)
                if not wire.more or len(heard) >= MAX_RECEIPTS:  # one answer for all that came at once
                    wire.confirm(heard)
                    heard.clear()
        except (ProtocolError, InvalidInput):
            with suppress(OSError):  # that whoever is refused has gone already does not matter
                wire.confirm(heard)
            raise

    def _admit(self, connection: socket.socket) -> Wire:
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        wire = Wire(connection, self.endpoint.key, secrets.token_bytes(NONCE_BYTES))
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            tune(connection)
            connection.sendall(wire.nonce)
            _, seal = wire.receive(MAX_HELLO, deadline)
        except (OSError, EOFError) as error:
            raise ProtocolError(f"a connection that proved nothing: {error}") from error
        with self._lock:
            if self._pending.pop(connection, None) is None:
                raise ProtocolError("a connection that had waited longest of too many")
        connection.settimeout(None)
        wire.confirm([seal])
        return wire

    def _refuse(self, error: Exception) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            self.refused += 1
            first = self.refused == 1
        # Strangers can come by the million: one line that is seen, the others for whoever is looking for them.
        logger.log(logging.WARNING if first else logging.DEBUG, "%s refused %s", self._name, error)


def _listen(bind: str) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
        both = bind == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot listen on bind={bind!r}, give an address of this host: {error}") from error
    listening.setblocking(False)
    return listening
