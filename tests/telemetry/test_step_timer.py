"""What members measure of their steps."""

from __future__ import annotations

import threading

import pytest

from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.emit import recording
from sparkdl.telemetry.event import Event
from sparkdl.telemetry.recorder import Recorder
from sparkdl.telemetry.step_timer import StepTimer, end_step, enter_phase, flush, measuring


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def events():
    found: list[Event] = []
    with recording(Recorder(None, rank=3, listener=found.append)):
        yield found


def spend(watch: Watch, **seconds: float) -> None:
    for phase, each in seconds.items():
        enter_phase(phase)
        watch.now += each


def test_phases_add_up_to_the_time_that_passed(watch, events):
    laps = StepTimer(every=0.0, now=watch)
    with measuring(laps):
        watch.now += 0.5
        spend(watch, feed=1.0, forward=2.0, backward=3.0, exchange=4.0, update=5.0)
        end_step(clock=Clock(0, 1, 8), rows=4, sent=100)
    assert laps.seconds == {"other": 0.5, "feed": 1.0, "forward": 2.0, "backward": 3.0, "exchange": 4.0, "update": 5.0}
    [event] = events
    assert (event.kind, event.rank, event.clock) == ("step", 3, {"epoch": 0, "step": 1, "samples": 8})
    told = event.payload
    assert (told["steps"], told["rows"], told["bytes"]) == (1, 4, 100)
    assert told["seconds"] == laps.seconds
    assert told["marks"] == [["other", 0.0], ["feed", 0.5], ["forward", 1.5], *told["marks"][3:]]
    assert told["end"] == 15.5


def test_a_phase_may_come_several_times_in_a_step(watch, events):
    laps = StepTimer(every=0.0, now=watch)
    with measuring(laps):
        for _ in range(3):
            spend(watch, forward=1.0, backward=2.0)
        end_step()
    assert laps.seconds["forward"] == 3.0
    assert laps.seconds["backward"] == 6.0


def test_an_event_tells_of_the_steps_since_the_one_before(watch, events):
    with measuring(StepTimer(every=1.0, now=watch)) as laps:
        for _ in range(10):
            spend(watch, forward=0.3)
            end_step(rows=2, sent=5)
        flush()
    assert [event.payload["steps"] for event in events] == [1, 4, 4, 1]
    assert sum(event.payload["rows"] for event in events) == 20
    assert sum(event.payload["bytes"] for event in events) == 50
    assert sum(event.payload["seconds"]["forward"] for event in events) == pytest.approx(3.0)
    assert laps.seconds["forward"] == pytest.approx(3.0)
    assert all(event.payload["end"] <= 0.3 + 1e-9 for event in events)  # the detail is of one step alone


def test_slow_steps_are_told_one_by_one(watch, events):
    with measuring(StepTimer(every=1.0, now=watch)):
        for _ in range(5):
            spend(watch, forward=1.5)
            end_step()
    assert [event.payload["steps"] for event in events] == [1] * 5
    assert all(event.payload["marks"][1] == ["forward", 0.0] for event in events)


def test_later_on_less_is_told(watch, events):
    with measuring(StepTimer(every=1.0, now=watch)):
        for _ in range(60):
            spend(watch, forward=1_000.0)
            end_step()
        before = len(events)
        for _ in range(60):
            spend(watch, forward=1.5)
            end_step()
    assert before == 60
    assert len(events) - before < 45


def test_what_others_have_measured_inside_is_not_measured_again(watch, events):
    with measuring(StepTimer(every=0.0, now=watch)) as outer:
        watch.now += 1.0
        with measuring(StepTimer(every=0.0, now=watch)) as inner:
            spend(watch, forward=5.0)
            flush()
        watch.now += 2.0
        flush()
    assert inner.seconds == {"other": 0.0, "forward": 5.0}
    assert outer.seconds == {"other": 3.0}


def test_a_step_with_a_checkpoint_is_told_at_once(watch, events):
    with measuring(StepTimer(every=1e9, now=watch)):
        spend(watch, forward=1.0)
        end_step()  # the first one is told whatever comes
        spend(watch, forward=1.0)
        end_step()
        spend(watch, forward=1.0, checkpoint=2.0)
        end_step()
    assert [event.payload["steps"] for event in events] == [1, 2]
    assert events[-1].payload["seconds"]["checkpoint"] == 2.0


def test_seconds_are_added_to_those_of_an_earlier_attempt(watch, events):
    before = {"forward": 10.0}
    with measuring(StepTimer(before, every=0.0, now=watch)):
        spend(watch, forward=1.0, update=2.0)
        end_step()
    assert before == {"other": 0.0, "forward": 11.0, "update": 2.0}


def test_without_laps_nothing_is_measured(events):
    enter_phase("forward")
    end_step(rows=1)
    assert not events


def test_laps_belong_to_a_thread_and_to_a_block(watch, events):
    inner, outer = StepTimer(every=0.0, now=watch), StepTimer(every=0.0, now=watch)
    with measuring(outer):
        thread = threading.Thread(target=lambda: spend(watch, forward=1.0))
        thread.start()
        thread.join()
        with measuring(inner):
            spend(watch, backward=1.0)
            end_step()
        spend(watch, update=1.0)
        end_step()
    assert set(inner.seconds) == {"other", "backward"}
    assert set(outer.seconds) == {"other", "update"}


def test_a_recorder_that_fails_costs_no_step(watch):
    def fail(event: Event) -> None:
        raise RuntimeError

    with recording(Recorder(None, rank=0, listener=fail)), measuring(StepTimer(every=0.0, now=watch)) as laps:
        spend(watch, forward=1.0)
        end_step()
    assert laps.seconds["forward"] == 1.0
