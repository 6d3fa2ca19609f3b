"""The order and the content of a tracker's calls."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl.errors import InvalidInput
from sparkdl.ml.tracking.tracker import TrackerContext, TrackerList
from sparkdl.telemetry.event import Event
from sparkdl.training.callbacks.callback import check_callbacks


class Diary:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def on_start(self, run: TrackerContext) -> None:
        self.lines.append(("start", run.environment))

    def on_step(self, run: TrackerContext) -> None:
        self.lines.append(("step", run.clock["step"], run.values))

    def on_epoch(self, run: TrackerContext) -> None:
        self.lines.append(("epoch", dict(run.history[-1])))

    def on_end(self, run: TrackerContext) -> None:
        self.lines.append(("end", run.model, run.error, len(run.history)))


class Fails:
    def on_epoch(self, run: TrackerContext) -> None:
        raise ConnectionError("no server")

    on_end = on_epoch


def event(kind: str, rank: int = 0, step: int | None = None, **payload: Any) -> Event:
    clock = None if step is None else {"epoch": 0, "step": step, "samples": 8 * step}
    return Event(kind, rank, 0, 0.0, clock, payload)


def called(*events: Event, **end: Any) -> list[Any]:
    diary = Diary()
    trackers = TrackerList([diary], TrackerContext("run"))
    for one in events:
        trackers(one)
    trackers.finish(**end)
    return diary.lines


EPOCHS = [{"epoch": number, "loss": 1 / number} for number in (1, 2, 3)]


def test_events_become_calls() -> None:
    lines = called(
        event("begin", -1, environment={"python": "3"}),
        event("progress", step=1, loss=0.75, rows_per_second=10.0),
        event("progress", rank=1, step=1, loss=0.5),
        event("epoch", step=5, **EPOCHS[0]),
        event("heartbeat", step=5),
        *[event("epoch", step=10, **EPOCHS[1])] * 2,  # the next attempt repeats it
        history=EPOCHS[:2],
        model="model",
    )
    first = [("start", {"python": "3"}), ("step", 1, {"loss": 0.75, "rows_per_second": 10.0})]
    assert lines == [*first, ("epoch", EPOCHS[0]), ("epoch", EPOCHS[1]), ("end", "model", None, 2)]
    assert called(error="WorkerLost: gone") == [("end", None, "WorkerLost: gone", 0)]


def test_resumed_run_replays_its_earlier_rows() -> None:
    again = event("restored", step=10, history=EPOCHS[:2])  # each attempt sends it
    last = event("epoch", step=15, **EPOCHS[2])
    lines = called(again, last, again, event("restored", truncated=9), history=EPOCHS)
    assert lines == [*(("epoch", row) for row in EPOCHS), ("end", None, None, 3)]


def test_failing_tracker_warns_once_and_the_others_are_called() -> None:
    diary = Diary()
    trackers = TrackerList([Fails(), diary], TrackerContext("run"))
    with pytest.warns(RuntimeWarning, match=r"Fails\.on_epoch failed: ConnectionError: no server"):
        trackers(event("epoch", step=1, epoch=1))
    trackers(event("epoch", step=2, epoch=2))  # a second warning would be an error
    assert len(diary.lines) == 2


class Prepares:
    """Logs each run with an object of its own."""

    def __init__(self, tracker: Any = None) -> None:
        self.tracker, self.diaries = tracker, dict[str, Diary]()

    def prepare(self, run: TrackerContext) -> Any:
        return self.tracker or self.diaries.setdefault(run.name, Diary())


def test_prepare_returns_the_object_that_is_called() -> None:
    callback = Prepares()
    for name in ("one", "two"):
        TrackerList([callback], TrackerContext(name, "/runs")).finish(error=name)
    lines = {name: diary.lines for name, diary in callback.diaries.items()}
    assert lines == {name: [("end", None, name, 0)] for name in ("one", "two")}
    with pytest.warns(RuntimeWarning, match=r"Prepares\.on_end failed: ConnectionError: no server"):
        TrackerList([Prepares(Fails())], TrackerContext("run", "/runs")).finish()
    checks = Diary()
    checks.prepare = lambda run: None  # type: ignore[attr-defined]
    TrackerList([checks], TrackerContext("run")).finish()
    assert [line[0] for line in checks.lines] == ["end"]


def test_objects_in_the_wrong_param_raise() -> None:
    with pytest.raises(InvalidInput, match=r"trackers holds .* none of the methods"):
        TrackerList([object()], TrackerContext("run"))
    with pytest.raises(InvalidInput, match=r"callbacks holds .*, a tracker.* trackers=\[...\]"):
        check_callbacks([Prepares(Diary())])
