"""What tests of events share: listeners, a channel that cannot be reached, and a look at what a test leaves behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sparkdl.net.protocol import Endpoint
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.recorder import Recorder

LONG = 20.0
"""Seconds after which something that should have happened has not."""


class Seen:
    """A listener that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._arrived = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._arrived:
            self.events.append(event)
            self._arrived.notify_all()

    def wait(self, count: int) -> list[Event]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.events) >= count, LONG), self.events
            return list(self.events)


class Stuck(Seen):
    """A listener that does not return before it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        self.entered.set()
        assert self.released.wait(LONG)
        super().__call__(event)


def descriptors() -> list[str]:
    """The targets of this process's open descriptors."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
    return targets


def sockets() -> set[str]:
    return {target for target in descriptors() if target.startswith("socket:")}


@contextmanager
def nothing_left() -> Iterator[None]:
    """No thread and no socket outlives the block."""
    before = sockets(), set(threading.enumerate())
    yield
    assert (sockets(), set(threading.enumerate())) == before


def values(events: list[Event]) -> list[int]:
    return [event.payload["value"] for event in events]


def still_works(channel: Channel, seen: Seen) -> None:
    before = len(seen.events)
    with Recorder(channel.endpoint, rank=9) as recorder:
        recorder.record("proof", value=before)
    assert values(seen.wait(before + 1))[-1] == before
    assert recorder.counts.dropped == 0


def nobody() -> Endpoint:
    """An endpoint at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Endpoint(("127.0.0.1",), server.getsockname()[1], bytes(32))


@contextmanager
def unreachable(cluster: Any, ear: Any, answer: Any = None) -> Iterator[Endpoint]:
    """In place of the ``_channel`` of a ``SparkCluster``: one that executors cannot reach."""
    yield nobody()
