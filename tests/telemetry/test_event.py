"""Events as JSON: they survive the way, whatever a payload holds."""

from __future__ import annotations

import json
import math
import socket

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.telemetry.event import Event


def test_event_round_trips_through_json() -> None:
    event = Event("loss", 1, 2, 3.5, {"epoch": 0, "step": 7, "samples": 64}, {"value": 0.25, "names": ["a", "é\ud800"]})
    assert Event.from_json(event.to_json()) == event
    assert Event.from_json(event.to_json().encode()) == event
    assert math.isnan(Event.from_json(Event("loss", 0, 0, 0.0, None, {"value": math.nan}).to_json()).payload["value"])


def test_any_payload_can_be_written() -> None:
    loop: list[object] = []
    loop.append(loop)
    odd = Event("odd", 0, 0, 1.0, None, {"value": 1, "socket": socket.socket})
    assert Event.from_json(odd.to_json()).payload == {"value": 1, "socket": {"unserialisable": "builtins.type"}}
    for value in (loop, {("a", "b"): 1}, 10**5000):
        payload = Event.from_json(Event("odd", 0, 0, 1.0, None, {"value": value}).to_json()).payload
        assert "Error" in payload["unserialisable"]


def test_too_large_event_records_its_size() -> None:
    large = Event("dump", 3, 0, 1.0, {"epoch": 0, "step": 1, "samples": 2}, {"text": "x" * (1 << 20)})
    small = Event.from_json(large.to_json())
    whole = len(json.dumps(vars(large), separators=(",", ":")))
    assert (small.kind, small.rank, small.clock, small.payload) == ("dump", 3, large.clock, {"truncated": whole})


@pytest.mark.parametrize(
    "text", ["", "1", "{}", b"\xff", "[" * 100_000, json.dumps(vars(Event("k", 0, 0, 0, None, {})) | {"rank": "0"})]
)
def test_malformed_event_raises(text: str | bytes) -> None:
    with pytest.raises(InvalidInput, match="event"):
        Event.from_json(text)
