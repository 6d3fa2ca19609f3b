"""The driver's side of the events: one channel takes those of all workers and hands each to one listener, once.

``sparkdl.telemetry.protocol`` describes how they travel, ``sparkdl.telemetry.emit`` how workers record them. A worker
may send events again after its connection broke. The channel knows them by their numbers and drops repeats; a listener
that counts, such as ``sparkdl.telemetry.event_log``, sees by the gaps what was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.event import Event, Listener
from sparkdl.telemetry.protocol import Connection, Endpoint, ProtocolError
from sparkdl.telemetry.server import Server

__all__ = ["ASK", "Channel"]

ASK = b"?"
"""A payload that is no event: it asks for a receipt, which says that the listener has had all events before it."""


class Channel:
    """Listens for workers and hands their events to one listener.

    Args:
        listener: called with every event, from the channel's threads, one call at a time; it must be quick, since
            all workers wait for it, and must not close the channel. What it raises is logged once.
        addresses: the host names or literals by which workers may reach this process, tried in this order.
        bind: the IPv4 or IPv6 literal or host name to listen on; ``"::"`` takes IPv4 as well where the system can.
        session: a name for log lines and threads.

    Attributes:
        received: events handed to the listener.

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
        self._listener = Listener(listener)
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}  # the number of the last event that was taken, by recorder
        self.received = 0
        name = f"sparkdl-channel-{session}" if session else "sparkdl-channel"
        self._server = Server(self._hear, addresses=addresses, bind=bind, name=name)

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> Endpoint:
        """What workers need to connect."""
        return self._server.endpoint

    @property
    def refused(self) -> int:
        """Connections closed because they proved nothing, or because of a frame they sent."""
        return self._server.refused

    def close(self) -> None:
        """End every connection and join every thread; a listener call in progress is waited for.

        Events that have no receipt yet go to their worker's fallback. Calling it again does nothing.

        Raises:
            RuntimeError: called from the listener, which would wait for itself.
        """
        self._server.close()

    def _hear(self, connection: Connection) -> None:
        while not self._server.closing:
            payload = connection.receive()
            if payload == ASK:
                connection.confirm()
            else:
                self._take(payload)

    def _take(self, payload: bytes) -> None:
        try:
            event = replace(Event.from_json(payload), received=time.time())
        except InvalidInput as error:
            raise ProtocolError(str(error)) from error
        with self._lock:
            if event.number:
                if event.number <= self._last.get(event.recorder, 0):
                    return  # sent again
                self._last[event.recorder] = event.number
            self.received += 1
        self._listener(event)
