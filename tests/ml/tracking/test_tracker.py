"""Hooks that are called on the driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.inline import InlineCluster
from sparkdl.errors import InvalidInput
from sparkdl.ml.tracking.tracker import DriverHooks, TrackerContext, split_callbacks
from sparkdl.telemetry.event import Event
from tests.training.test_resume import STEPS, Folder, data, run, sgd, untimed


class Diary:
    on_driver = True

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


def event(kind: str, rank: int = 0, step: int | None = None, **payload: Any) -> Event:
    clock = None if step is None else {"epoch": 0, "step": step, "samples": 8 * step}
    return Event(kind, rank, 0, 0.0, clock, payload)


def called(*events: Event, **end: Any) -> list[Any]:
    diary = Diary()
    hooks = DriverHooks([diary], TrackerContext("run"))
    for each in events:
        hooks(each)
    hooks.finish(**end)
    return diary.lines


def test_moments_come_from_events() -> None:
    rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    assert called(
        event("begin", -1, environment={"python": "3"}),
        event("progress", step=1, loss=0.75, rows_per_second=10.0),
        event("progress", rank=1, step=1, loss=0.5),
        event("epoch", step=5, **rows[0]),
        event("heartbeat", step=5),
        event("epoch", step=10, **rows[1]),
        history=rows,
        model="model",
    ) == [
        ("start", {"python": "3"}),
        ("step", 1, {"loss": 0.75, "rows_per_second": 10.0}),
        ("epoch", rows[0]),
        ("epoch", rows[1]),
        ("end", "model", None, 2),
    ]


def test_a_row_that_no_event_told_of_comes_before_the_end() -> None:
    rows = [{"round": number, "loss": 1 / number} for number in (1, 2, 3)]
    lines = called(event("round", -1, **rows[0]), event("round", -1, **rows[2]), history=rows)
    assert [line[1]["round"] for line in lines[:-1]] == [1, 3, 2]
    assert lines[-1] == ("end", None, None, 3)


def test_a_run_that_goes_on_tells_of_its_earlier_rows_first() -> None:
    rows = [{"epoch": number, "loss": 1 / number} for number in (1, 2, 3)]
    again = event("restored", step=10, history=rows[:2])  # a second time by the next attempt
    lines = called(again, event("epoch", step=15, **rows[2]), again, event("restored", truncated=9), history=rows)
    assert lines == [*(("epoch", row) for row in rows), ("end", None, None, 3)]


def test_a_gang_that_goes_on_tells_of_its_earlier_rows(tmp_path: Path) -> None:
    keeper, diary = Folder(str(tmp_path)), Diary()
    (trained,) = run(InlineCluster(), "SGD", keeper)
    training, columns = sgd()
    again = replace(training, keeper=replace(keeper, start=STEPS))
    InlineCluster().gang(again, data(), columns, listener=DriverHooks([diary], TrackerContext("run")))
    assert repr(untimed([line[1] for line in diary.lines if line[0] == "epoch"])) == repr(untimed(trained.history))


def test_an_epoch_that_is_run_again_is_told_once() -> None:
    row = {"epoch": 1, "loss": 0.5}
    lines = called(event("epoch", step=5, **row), event("epoch", step=5, **row), history=[row])
    assert [line[0] for line in lines] == ["epoch", "end"]


def test_a_run_that_fails_ends_with_its_error() -> None:
    assert called(error="WorkerLost: gone") == [("end", None, "WorkerLost: gone", 0)]


def test_a_hook_that_fails_is_a_warning_and_the_others_are_called() -> None:
    class Fails:
        def on_epoch(self, run: TrackerContext) -> None:
            raise ConnectionError("no server")

    diary = Diary()
    hooks = DriverHooks([Fails(), diary], TrackerContext("run"))
    with pytest.warns(RuntimeWarning, match=r"Fails\.on_epoch failed: ConnectionError: no server"):
        hooks(event("epoch", step=1, epoch=1))
    hooks(event("epoch", step=2, epoch=2))  # of which no other warning comes
    assert len(diary.lines) == 2


def test_a_hook_that_is_prepared_is_called_by_what_it_gave_for_the_run() -> None:
    class Prepared:
        def __init__(self) -> None:
            self.made: dict[str, Diary] = {}

        def prepare(self, run: TrackerContext) -> Diary:
            return self.made.setdefault(run.name, Diary())

    hook = Prepared()
    for name in ("one", "two"):
        DriverHooks([hook], TrackerContext(name)).finish(error=name)
    assert {name: diary.lines for name, diary in hook.made.items()} == {
        name: [("end", None, name, 0)] for name in ("one", "two")
    }


def test_a_hook_that_is_only_asked_is_called_itself() -> None:
    class Asked(Diary):
        def prepare(self, run: TrackerContext) -> None:
            if run.directory is None:
                raise InvalidInput("there is no runDir")

    with pytest.raises(InvalidInput, match="there is no runDir"):
        DriverHooks([Asked()], TrackerContext("run"))
    hook = Asked()
    DriverHooks([hook], TrackerContext("run", "/runs/one")).finish()
    assert [line[0] for line in hook.lines] == ["end"]


def test_what_a_prepared_hook_raises_is_told_by_the_name_of_the_hook() -> None:
    class Fails:
        def on_end(self, run: TrackerContext) -> None:
            raise ConnectionError("no server")

    class Mine:
        def prepare(self, run: TrackerContext) -> Fails:
            return Fails()

    with pytest.warns(RuntimeWarning, match=r"Mine\.on_end failed: ConnectionError: no server"):
        DriverHooks([Mine()], TrackerContext("run")).finish()


def test_an_object_without_a_moment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="none of the methods"):
        DriverHooks([object()], TrackerContext("run"))


def test_hooks_are_told_apart_by_where_they_are_called() -> None:
    there, here = object(), Diary()
    assert split_callbacks([there, here]) == ([there], [here])
