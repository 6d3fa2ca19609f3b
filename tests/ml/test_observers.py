"""Whatever watches a fit on the driver neither fails nor delays it; the next fit of the process works."""

from __future__ import annotations

import errno
import io
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl import TorchClassifier
from sparkdl.ml import fit_monitor
from sparkdl.ml.run import Run
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.event_file import EventFile

CLOCK = {"epoch": 0, "step": 1, "samples": 8}
EVENTS = [
    Event("progress", 0, 0, 2.0, CLOCK, {"steps": 2, "epochs": 1, "loss": 0.5, "rows_per_second": 8.0}),
    Event("log", 0, 0, 3.0, None, {"level": "WARNING", "logger": "app", "message": "a line", "left_out": 0}),
    Event("epoch", 0, 0, 4.0, CLOCK, {"epoch": 1, "loss": 0.5}),
]
GATE = threading.Event()


def fails(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def blocks(*_: Any, **__: Any) -> Any:
    GATE.wait(60)


def fit(directory: Any, *trackers: Any) -> None:
    """A fit as its watch sees it."""
    with fit_monitor.FitMonitor(Run(str(directory)), TorchClassifier(), trackers=trackers) as watch:
        watch.event_log.note("begin", {"environment": {}})
        for event in EVENTS:
            watch.event_log(event)
    watch.report([{"epoch": 1, "loss": 0.5}], {"seconds": 1.0})
    watch.finish(SimpleNamespace(history=[], report={}))


PLACES = {"stderr": "the progress bar", "tracker": "SimpleNamespace", "append": "writing the events"}
PLACES |= {"save": "writing history.json", "write_timeline": "writing timeline.json"}


@pytest.mark.parametrize("odd", [fails, blocks])
@pytest.mark.parametrize("place", PLACES)
def test_observer_neither_fails_nor_delays_a_fit(place, odd, tmp_path, monkeypatch, caplog, recwarn):
    for limit in ("ml.fit_monitor.OBSERVING", "io.threads.OBSERVING", "io.threads.CLOSING"):
        monkeypatch.setattr(f"sparkdl.{limit}", 0.1, raising=False)
    GATE.clear()
    with monkeypatch.context() as patch:
        if place == "stderr":
            patch.setattr(sys, "stderr", SimpleNamespace(write=odd, flush=odd))
        elif place != "tracker":
            patch.setattr({"save": Run, "append": EventFile}.get(place, fit_monitor), place, odd)
        fit(tmp_path / "one", *([SimpleNamespace(on_epoch=odd)] if place == "tracker" else []))
    warned = caplog.text + "".join(str(each.message) for each in recwarn)
    assert PLACES[place] in warned
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        fit(tmp_path / "two", SimpleNamespace(on_epoch=print))
    assert "epoch 1/1" in stream.getvalue()
    assert "[rank 0] WARNING app: a line" in stream.getvalue()
    GATE.set()


def test_fit_that_does_not_begin_leaves_no_thread_and_ends_no_tracker():
    before, ended = {*threading.enumerate()}, []
    trackers = [SimpleNamespace(on_end=ended.append)]
    with pytest.raises(KeyError), fit_monitor.FitMonitor(Run(), TorchClassifier(), trackers=trackers):
        raise KeyError
    assert ({*threading.enumerate()} - before, ended) == (set(), [])
