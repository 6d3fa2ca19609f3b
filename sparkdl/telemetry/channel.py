"""The driver's channel: receives all workers' events, passes each to one listener, once, and answers questions.

``sparkdl.net.protocol`` describes the connection, ``sparkdl.telemetry.emit`` the recording. A worker may resend
events after its connection broke. The channel drops repeats by their numbers. A listener that counts, such as
``sparkdl.telemetry.event_log``, detects lost events by the gaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from sparkdl.errors import InvalidInput
from sparkdl.net.protocol import Connection, ProtocolError
from sparkdl.net.server import Server
from sparkdl.telemetry.event import Event, SafeCallback

ASK = b"?"
"""A payload that asks for a receipt, which confirms that the listener has received all earlier events."""
REQUEST = b"!"
"""The first byte of a payload that the channel passes to ``answer``."""


class Channel(Server, AbstractContextManager["Channel"]):
    """Listens for workers and passes their events to one listener.

    ``close`` waits for the listener's current call; events without a receipt then go to their worker's fallback.

    Args:
        listener: receives every event, from the channel's threads, one call at a time. It must be quick, since all
            workers wait for it, and must not close the channel. Its first exception is logged.
        addresses: as of ``Server``.
        bind: as of ``Server``.
        key: as of ``Server``.
        port: as of ``Server``.
        answer: gets the payload after ``REQUEST``; the channel sends its answer's frames. It may wait, but not beyond
            ``close``. Without it, a question is an invalid payload.

    Attributes:
        received: events passed to the listener.
    """

    def __init__(
        self,
        listener: Callable[[Event], None],
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        bind: str = "127.0.0.1",
        key: bytes | None = None,
        port: int = 0,
        answer: Callable[[bytes], Sequence[bytes]] | None = None,
    ) -> None:
        self._answer = answer
        self._listener = SafeCallback(listener)
        self._last: dict[str, int] = {}  # number of each recorder's last event
        self.received = 0
        super().__init__("sparkdl-channel", addresses=addresses, bind=bind, key=key, port=port)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, connection: Connection) -> None:
        while not self._closing.is_set():
            payload = connection.receive()
            if payload == ASK:
                connection.confirm()
            elif self._answer is not None and payload.startswith(REQUEST):
                connection.send(self._answer(payload.removeprefix(REQUEST)))
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
