"""What tests of channels and recorders share."""

from __future__ import annotations

import pytest

from benchmarks.events.browser import Browser
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.emit import recording
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.recorder import Recorder
from tests.listening import Seen, nothing_left
from tests.telemetry.html.looking import find_browser


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


@pytest.fixture(scope="session")
def browser() -> Browser:
    """Skips where no browser is installed; where SPARKDL_REQUIRE_BROWSER is set it fails instead."""
    return find_browser()
