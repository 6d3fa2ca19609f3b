"""The progress bar follows the events."""

from __future__ import annotations

import io
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from sparkdl.telemetry.event import Event
from sparkdl.telemetry.progress_bar import Progress


def event(kind: str, clock: tuple[int, int, int] | None = None, **payload: Any) -> Event:
    named = None if clock is None else dict(zip(("epoch", "step", "samples"), clock, strict=True))
    return Event(kind, 0, 0, time.time(), named, payload)


def progress(epoch: int, step: int, **payload: Any) -> Event:
    given = {"epochs": 2, "steps": 5, "loss": 0.5, "rows_per_second": 1234.4} | payload
    return event("progress", (epoch, step, 8 * step), **given)


def shown(*events: Event) -> list[str]:
    """The line each time it was drawn; finished lines end with a newline."""
    stream = io.StringIO()
    with closing(Progress("fit", stream)) as line:
        for event in events:
            line(event)
    return stream.getvalue().replace("\n", "\n\r").split("\r")


OTHER_RANK = Event("progress", 1, 0, time.time(), {"epoch": 0, "step": 4, "samples": 8}, progress(0, 4).payload)
VALIDATED = event("epoch", (1, 5, 40), loss=0.25, valid_loss=0.75, accuracy=0.9)


@pytest.mark.parametrize(
    ("events", "parts"),
    [
        ([progress(0, 1), progress(0, 3)], ["fit: epoch 1/2", "3/10", "loss=0.5000", "rows/s=1,234"]),
        ([progress(0, 1), progress(0, 4), progress(1, 6), progress(1, 10)], ["epoch 2/2", "10/10", "100%"]),
        ([progress(0, 1), OTHER_RANK], ["1/10"]),
        ([progress(0, 5), VALIDATED], ["5/10", "loss=0.2500", "valid_loss=0.7500"]),
        ([progress(0, 5), VALIDATED, progress(1, 7)], ["accuracy=0.9000", "valid_loss=0.7500", "loss=0.5000"]),
        ([progress(1, 9), event("epoch", (2, 10, 80), loss=0.25)], ["epoch 2/2"]),
        ([progress(0, 1, loss=None, rows_per_second=None, valid_x=[1])], ["loss=-", "rows/s=0", "valid_x=-"]),
        ([progress(1, 9), progress(0, 2, loss=0.75)], ["2/10", "loss=0.7500"]),
        ([event("started"), progress(0, 1)], ["workers=1"]),
        ([replace(OTHER_RANK, kind="started"), event("failed"), event("started"), progress(0, 1)], ["workers=2"]),
        ([replace(progress(0, 1), attempt=1)], ["fit, attempt 2: epoch 1/2"]),
        ([event("round", round=2, rounds=4, primal=0.25, clients=3, seconds=1.0)], ["2/4", "50%", "primal=0.25"]),
        ([event("round", round=3, rounds=None, loss=0.5)], ["3round"]),
    ],
)
def test_line_shows(events: list[Event], parts: list[str]) -> None:
    last = shown(*events)[-2]
    for part in parts:
        assert part in last


def test_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    line = Progress("transform")
    line.close()
    for _ in range(2):
        line(progress(0, 1))
        line.close()
        line.close()
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("transform: epoch 1/2") >= 2


def test_wait_is_shown_until_progress() -> None:
    first, later = (event("waiting", what="2 task slots", seconds=seconds) for seconds in (3.4, 9.0))
    drawn = shown(first, later)
    assert drawn == ["", "fit: waiting for 2 task slots, 3 s", "fit: waiting for 2 task slots, 9 s\n", ""]
    drawn = shown(first, progress(0, 1), later)
    assert drawn[1] == "fit: waiting for 2 task slots, 3 s\n"
    assert not any("waiting" in line for line in drawn[2:])


def test_other_events_change_nothing() -> None:
    ended = event("epoch", (1, 5, 40), loss=1.0)
    assert shown(event("span", (0, 1, 8), name="forward"), event("progress"), ended, event("loss")) == [""]


def test_restart_shows_cause_and_resets_bar() -> None:
    restart = event("restart", cause="WorkerLost: rank 1 was killed", seconds=2.0)
    waiting, resized = event("waiting", what="2 task slots", seconds=3.0), event("resized", size=1, of=2)
    drawn = shown(progress(1, 7), restart, waiting, resized, progress(1, 6))
    assert "fit: WorkerLost: rank 1 was killed; restart in 2 s\n" in drawn
    assert any("waiting for 2 task slots" in line for line in drawn)
    assert "fit: 1 of 2 workers start\n" in drawn
    assert "6/10" in drawn[-2]
    assert "fit: lost; restart now\n" in shown(event("restart", cause="lost", seconds=0.0))


def test_ensemble_counts_members_and_not_their_epochs() -> None:
    members, ended = event("members", count=3), event("epoch", (1, 5, 40))
    drawn = shown(members, progress(0, 1), event("member", member=0, seconds=1.0), ended)
    assert "1/3" in drawn[-2]
    assert "member" in drawn[-2]
    assert "epoch" not in "".join(drawn)
    assert "2/4" in shown(members, event("member"), event("members", count=1), event("member"))[-2]
