"""What tests of channels and recorders share."""

from __future__ import annotations

import pytest

from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.emit import recording
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.recorder import Recorder
from tests.listening import Seen, nothing_left


@pytest.fixture
def nothing_is_left():
    with nothing_left():
        yield


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def channel(nothing_is_left, seen):
    with Channel(seen) as channel:
        yield channel


@pytest.fixture
def events():
    """The events that this process, as rank 3, records."""
    recorded: list[Event] = []
    with recording(Recorder(None, rank=3, listener=recorded.append)):
        yield recorded
