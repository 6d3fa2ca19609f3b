"""Events of tasks that are no workers of a gang."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from sparkdl.telemetry import recorder
from sparkdl.telemetry.channel import Channel
from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import record
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_reader import read_events
from sparkdl.telemetry.protocol import Endpoint
from sparkdl.telemetry.step_timer import end_step, enter_phase
from sparkdl.telemetry.task_recorder import Reporting
from tests.listening import nobody


def test_events_have_index_and_attempt_of_task() -> None:
    events: list[Event] = []
    with Channel(events.append) as channel, Reporting(channel.endpoint, number=7).task("map", 3, 2):
        record("hello", clock=Clock(1, 2, 3))
        enter_phase("forward")
        end_step(rows=5)
    with pytest.raises(LookupError), Reporting(listener=events.append).task("map", 3, 2):
        raise LookupError
    assert {(event.rank, event.attempt) for event in events} == {(3, 2)}
    assert [event.kind for event in events] == ["hello", "step", "step", "span", "span"]
    assert (events[3].payload["name"], events[3].payload["round"]) == ("map", 7)
    assert events[-1].payload["error"] == "LookupError"


def test_without_destination_nothing_is_measured() -> None:
    with Reporting().task("map", 0):
        record("hello")
        end_step(rows=5)


def test_silent_driver_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(address: str, *_: object) -> None:
        asked.append(address)
        raise ConnectionError("nobody")

    monkeypatch.setattr(recorder.Connection, "open", refuse)
    endpoint = nobody()
    for index in range(5):
        with Reporting(endpoint, str(tmp_path)).task("map", index):
            record("hello")
    assert asked == ["127.0.0.1"]
    assert sorted(event.rank for event in read_events(tmp_path) if event.kind == "hello") == [0, 1, 2, 3, 4]


def test_driver_without_answers_delays_no_task(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(("127.0.0.1",), server.getsockname()[1], bytes(32))
        start = time.monotonic()
        for index in range(20):
            with Reporting(endpoint, str(tmp_path)).task("map", index):
                record("hello")
        assert time.monotonic() - start < 60  # and not 20 times as long as one connection may take
    assert len([event for event in read_events(tmp_path) if event.kind == "hello"]) == 20
