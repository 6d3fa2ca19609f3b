"""The driver's event channel: receives all workers' events and passes each to one listener, once.

``sparkdl.telemetry.protocol`` describes the connection, ``sparkdl.telemetry.emit`` the recording. A worker may resend
events after its connection broke. The channel drops repeats by their numbers. A listener that counts, such as
``sparkdl.telemetry.event_log``, detects lost events by the gaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.event import Event, SafeCallback
from sparkdl.telemetry.protocol import Connection, ProtocolError
from sparkdl.telemetry.server import Server

ASK = b"?"
"""A payload that asks for a receipt, which confirms that the listener has received all earlier events."""


class Channel(Server):
    """Listens for workers and passes their events to one listener.

    ``close`` waits for the listener's current call; events without a receipt then go to their worker's fallback.

    Args:
        listener: receives every event, from the channel's threads, one call at a time. It must be quick, since all
            workers wait for it, and must not close the channel. Its first exception is logged.
        addresses: as of ``Server``.
        bind: as of ``Server``.

    Attributes:
        received: events passed to the listener.
    """

    def __init__(
        self, listener: Callable[[Event], None], *, addresses: Sequence[str] = ("127.0.0.1",), bind: str = "127.0.0.1"
    ) -> None:
        self._listener = SafeCallback(listener)
        self._last: dict[str, int] = {}  # number of each recorder's last event
        self.received = 0
        super().__init__("sparkdl-channel", addresses=addresses, bind=bind)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, connection: Connection) -> None:
        while not self._closing.is_set():
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
                    return  # a repeat
                self._last[event.recorder] = event.number
            self.received += 1
        self._listener(event)
