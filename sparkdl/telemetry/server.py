"""A TCP server that hears holders of its key alone, and puts strangers out; payloads are its caller's business.

``sparkdl.telemetry.protocol`` describes the wire format and what it protects.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.protocol import KEY_BYTES, Connection, Endpoint, ProtocolError, shut, tune

__all__ = ["Server"]

MAX_PENDING = 256
"""Connections that may be waiting to prove themselves; a gang of so many can connect in the same instant."""
BACKLOG = 1024
"""Connections that may be waiting to be accepted."""
HANDSHAKE_SECONDS = 5.0
"""What a connection has, in all, to prove itself."""

logger = logging.getLogger(__name__)


class Server:
    """Listens on a port and serves each connection that proves to hold the key in a thread of its own.

    Args:
        serve: called with each such connection, in its thread; its end is the connection's end. It raises
            ``ProtocolError`` to refuse a payload.
        addresses: the host names or literals by which clients may reach this process, tried in this order.
        bind: the IPv4 or IPv6 literal or host name to listen on; ``"::"`` takes IPv4 as well where the system can.
        name: for log lines and threads.

    Attributes:
        endpoint: what clients need to connect.
        refused: connections closed because they proved nothing, or because of a frame they sent.

    Raises:
        InvalidInput: no addresses are given, or ``bind`` is none of this host's addresses.
    """

    def __init__(
        self,
        serve: Callable[[Connection], None],
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        bind: str = "127.0.0.1",
        name: str = "sparkdl-server",
    ) -> None:
        self._serve, self._name = serve, name
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._pending: dict[socket.socket, threading.Thread] = {}
        self._threads: list[threading.Thread] = []
        self.refused = 0
        names = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        unbound = Endpoint(names, 0, secrets.token_bytes(KEY_BYTES))
        self._socket = _listen(bind)
        self.endpoint = replace(unbound, port=self._socket.getsockname()[1])
        self._alarm, self._wake = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name=self._name, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closing(self) -> bool:
        """Whether ``close`` was called: connections then end, whatever has come on them."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop listening, end every connection and join every thread; calling it again does nothing.

        Raises:
            RuntimeError: called from ``serve``, which would wait for itself.
        """
        if threading.current_thread() in self._threads:
            raise RuntimeError("a thread that a server runs cannot close it; close it from another thread")
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
        thread = threading.Thread(target=self._run, args=(connection,), name=self._name, daemon=True)
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

    def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._serve(self._admit(connection))
            except ProtocolError as error:
                self._refuse(error)
            except (OSError, EOFError) as error:
                logger.debug("%s: a client's connection ended: %s", self._name, error)
            finally:
                with self._lock:
                    self._connections.discard(connection)
                    self._pending.pop(connection, None)

    def _admit(self, connection: socket.socket) -> Connection:
        try:
            tune(connection)
        except OSError as error:
            raise ProtocolError(f"a connection that ended at once: {error}") from error
        admitted = Connection.accept(connection, self.endpoint.key, HANDSHAKE_SECONDS)
        with self._lock:
            if self._pending.pop(connection, None) is None:
                raise ProtocolError("a connection that had waited longest of too many")
        admitted.confirm()
        return admitted

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
