"""One line that follows the events."""

from __future__ import annotations

import io
import time
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


def waiting(seconds: float) -> Event:
    return event("waiting", what="2 task slots", seconds=seconds)


def shown(*events: Event, title: str = "fit") -> list[str]:
    """What was on the line, each time it was drawn; lines end with a newline of their own."""
    stream = io.StringIO()
    with Progress(title, stream) as line:
        for each in events:
            line(each)
    return stream.getvalue().replace("\n", "\n\r").split("\r")


def test_epoch_step_loss_and_rate_are_shown() -> None:
    last = shown(progress(0, 1), progress(0, 3))[-2]
    for part in ("fit: epoch 1/2", "3/10", "loss=0.5000", "rows/s=1,234"):
        assert part in last


def test_the_bar_follows_the_clock() -> None:
    drawn = shown(progress(0, 1), progress(0, 4), progress(1, 6), progress(1, 10))
    assert [line for line in drawn if "10/10" in line]
    assert "epoch 2/2" in drawn[-2]
    assert "100%" in drawn[-2]


def test_the_end_of_an_epoch_shows_validation() -> None:
    last = shown(progress(0, 5), event("epoch", (1, 5, 40), loss=0.25, valid_loss=0.75, valid_auc=0.875))[-2]
    for part in ("loss=0.2500", "valid_loss=0.7500", "valid_auc=0.8750", "5/10"):
        assert part in last


def test_after_the_last_epoch_it_is_still_the_last() -> None:
    assert "epoch 2/2" in shown(progress(1, 9), event("epoch", (2, 10, 80), loss=0.25))[-2]


def test_what_is_not_known_is_a_dash() -> None:
    last = shown(progress(0, 1, loss=None, rows_per_second=None, valid_matrix=[[1, 2]]))[-2]
    for part in ("loss=-", "rows/s=0", "valid_matrix=-"):
        assert part in last


def test_a_new_attempt_goes_back() -> None:
    drawn = shown(progress(1, 9), progress(0, 2, loss=0.75))
    assert "2/10" in drawn[-2]
    assert "loss=0.7500" in drawn[-2]


def test_waiting_is_shown_until_there_is_progress() -> None:
    assert shown(waiting(3.4), waiting(4.4)) == [
        "",
        "fit: waiting for 2 task slots, 3 s",
        "fit: waiting for 2 task slots, 4 s\n",
        "",
    ]
    drawn = shown(waiting(3.0), progress(0, 1), waiting(9.0))
    assert drawn[1] == "fit: waiting for 2 task slots, 3 s\n"
    assert not any("waiting" in line for line in drawn[2:])


@pytest.mark.parametrize(
    "other",
    [event("span", (0, 1, 8), name="forward"), event("progress"), event("epoch", (1, 5, 40), loss=1.0), event("loss")],
    ids=lambda other: other.kind,
)
def test_other_events_leave_the_line_alone(other: Event) -> None:
    assert shown(other) == [""]


def test_the_title_is_the_callers() -> None:
    assert "transform: epoch 1/2" in shown(progress(0, 1), title="transform")[-2]


def test_it_can_be_closed_twice_and_used_again() -> None:
    stream = io.StringIO()
    line = Progress(stream=stream)
    line.close()
    for _ in range(2):
        line(progress(0, 1))
        line.close()
        line.close()
    assert stream.getvalue().endswith("\n")


def test_it_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as line:
        line(progress(0, 1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fit: epoch 1/2" in captured.err


def test_a_restart_says_why_and_the_bar_begins_again() -> None:
    restart = event("restart", cause="WorkerLost: rank 1 was killed", seconds=2.0)
    drawn = shown(progress(1, 7), restart, waiting(3.0), progress(1, 6))
    assert "fit: WorkerLost: rank 1 was killed; again in 2 s\n" in drawn
    assert any("waiting for 2 task slots" in line for line in drawn)
    assert "6/10" in drawn[-2]


def test_another_number_of_members_is_told() -> None:
    restart = event("restart", cause="there is room for 2 members, and 1 ran", seconds=0.0)
    drawn = shown(event("resized", size=1, of=2), progress(1, 7), restart, event("resized", size=2, of=2))
    assert drawn[0] == "fit: 1 of 2 members begin\n"
    assert drawn[-3:-1] == [
        "fit: there is room for 2 members, and 1 ran; again at once\n",
        "fit: 2 of 2 members begin\n",
    ]


def test_rounds_have_a_bar_of_their_own_with_what_they_came_to() -> None:
    drawn = shown(
        *(event("round", round=number, rounds=4, primal=0.5 / number, clients=3, seconds=1.0) for number in (1, 2))
    )
    for part in ("2/4", "50%", "primal=0.25"):
        assert part in drawn[-2]
    assert "seconds" not in drawn[-2]


def test_rounds_without_an_end_are_counted() -> None:
    assert "3round" in shown(event("round", round=3, rounds=None, loss=0.5))[-2]


def test_members_that_are_alive_and_the_attempt_are_shown() -> None:
    def of(rank: int, kind: str, **more: Any) -> Event:
        return Event(kind, rank, 1, time.time(), None, more)

    first = shown(of(0, "started"), of(1, "started"), event("progress", (0, 1, 8), epochs=2, steps=5))
    assert "members=2" in first[-2]
    gone = [of(0, "started"), of(1, "started"), of(1, "failed")]
    again = Event("progress", 0, 1, time.time(), {"epoch": 0, "step": 1, "samples": 8}, {"epochs": 2, "steps": 5})
    last = shown(*gone, again)[-2]
    assert "members=1" in last
    assert "fit, attempt 2: epoch 1/2" in last


def test_other_ranks_do_not_move_the_bar() -> None:
    other = Event("progress", 1, 0, time.time(), {"epoch": 0, "step": 4, "samples": 8}, progress(0, 4).payload)
    assert "4/10" not in "".join(shown(progress(0, 1), other))


def test_measures_of_an_epoch_stay_until_the_next_one_ends() -> None:
    last = shown(progress(0, 5), event("epoch", (1, 5, 40), loss=0.25, accuracy=0.9), progress(1, 7))[-2]
    assert "accuracy=0.9000" in last
    assert "loss=0.5000" in last


def test_members_of_an_ensemble_are_counted_and_their_epochs_are_not() -> None:
    drawn = shown(
        event("members", count=3), progress(0, 1), event("member", member=0, seconds=1.0), event("epoch", (1, 5, 40))
    )
    assert "1/3" in drawn[-2]
    assert "member" in drawn[-2]
    assert "epoch" not in "".join(drawn)
    assert "2/4" in shown(event("members", count=3), event("member"), event("members", count=1), event("member"))[-2]
