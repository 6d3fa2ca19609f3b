"""TCP server that admits only holders of its key; the caller interprets the payloads.

``sparkdl.net.protocol`` describes the wire format and its protection.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from sparkdl.errors import InvalidInput
from sparkdl.net.protocol import KEY_BYTES, Connection, Endpoint, ProtocolError, shut

MAX_PENDING = 256
"""Unproven connections at a time; a gang of this many workers can connect at once."""
BACKLOG = 1024
"""Connections that may wait to be accepted."""
HANDSHAKE_SECONDS = 5.0
"""Total time that a connection has to prove itself, in seconds."""
CLOSING = 10.0
"""Total time that ``close`` waits for the threads of connections, in seconds."""

logger = logging.getLogger(__name__)


class Server(ABC):
    """Listens on a port and serves each proven connection in its own thread.

    Args:
        name: for log lines and threads.
        addresses: host names or literals by which clients may reach this process, tried in this order.
        bind: IPv4 or IPv6 literal or host name to listen on; ``"::"`` accepts IPv4 as well if the system can.
        key: 32 bytes that clients have already; default: random ones.
        port: the port to listen on; 0: one that the system chooses.

    Attributes:
        endpoint: the endpoint that clients connect to.
        refused: connections closed because they proved nothing, or sent an invalid frame.

    Raises:
        InvalidInput: no addresses are given, ``bind`` is not an address of this host, or the port is taken.
    """

    def __init__(
        self, name: str, *, addresses: Sequence[str], bind: str, key: bytes | None = None, port: int = 0
    ) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._pending: dict[socket.socket, threading.Thread] = {}
        self._threads: list[threading.Thread] = []
        self.refused = 0
        addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        unbound = Endpoint(addresses, 0, key or secrets.token_bytes(KEY_BYTES))
        self._socket = _listen(bind, port)
        self.endpoint = replace(unbound, port=self._socket.getsockname()[1])
        self._alarm, self._wake = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name=name, daemon=True)
        self._accepting.start()

    @abstractmethod
    def _serve(self, connection: Connection) -> None:
        """Serve a proven connection in its thread until it closes; raise ``ProtocolError`` to reject a payload."""

    def await_clients(self, limit: float) -> None:
        """Wait until the proven clients have closed their connections, for ``limit`` seconds at most."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            with self._lock:
                if not self._connections - self._pending.keys():
                    return
            self._closing.wait(0.01)

    def close(self) -> None:
        """Close all connections and join all threads, for ``CLOSING`` s at most. Its own threads get a RuntimeError."""
        if threading.current_thread() in self._threads:
            raise RuntimeError("a server cannot be closed from its own threads; close it from another thread")
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._wake.send(b"x")
        self._accepting.join()
        with self._lock:
            for connection in self._connections:
                shut(connection)
        deadline = time.monotonic() + CLOSING
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            # In a thread, since a handler may write to a stream that blocks.
            late = f"{self._name} does not end within {CLOSING:g} s"
            threading.Thread(target=logger.warning, args=(late,), name="sparkdl-warning", daemon=True).start()
        for closing in (self._socket, self._alarm, self._wake):
            closing.close()

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
                except (BlockingIOError, ConnectionAbortedError):  # the client left before it was accepted
                    continue
                except OSError as error:  # probably out of file descriptors: do not spin
                    logger.warning("%s cannot accept a connection: %s", self._name, error)
                    self._closing.wait(0.1)
                    continue
                self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._run, args=(connection,), name=self._name, daemon=True)
        evicted = None
        with self._lock:
            self._threads = [running for running in self._threads if running.is_alive()]
            if len(self._pending) >= MAX_PENDING:
                oldest = next(iter(self._pending))
                evicted = self._pending.pop(oldest)
                shut(oldest)
            try:
                thread.start()
                self._connections.add(connection)
                self._pending[connection] = thread
                self._threads.append(thread)
            except RuntimeError as error:  # the system is out of threads
                logger.warning("%s cannot serve a connection: %s", self._name, error)
                self.refused += 1
                connection.close()
        if evicted is not None:
            evicted.join()  # unproven, so it is not served and ends at once

    def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._serve(self._admit(connection))
            except ProtocolError as error:
                with self._lock:
                    if not self._closing.is_set():
                        self.refused += 1
                        # Strangers may be many: warn once, and log the others for debugging only.
                        level = logging.WARNING if self.refused == 1 else logging.DEBUG
                        logger.log(level, "%s rejected a connection: %s", self._name, error)
            except (OSError, EOFError) as error:
                logger.debug("%s: a client's connection ended: %s", self._name, error)
            finally:
                with self._lock:
                    self._connections.discard(connection)
                    self._pending.pop(connection, None)

    def _admit(self, connection: socket.socket) -> Connection:
        admitted = Connection.accept(connection, self.endpoint.key, HANDSHAKE_SECONDS)
        with self._lock:
            if self._pending.pop(connection, None) is None:
                raise ProtocolError("too many clients wait to prove themselves, and this one waited longest")
        admitted.confirm()
        return admitted


def _listen(bind: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        both = bind == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"bind={bind!r} cannot be listened on: {error}. Give an address of this host") from error
    listening.setblocking(False)
    return listening
