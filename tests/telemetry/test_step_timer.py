"""Timing of a worker's steps."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sparkdl.telemetry.clock import Clock
from sparkdl.telemetry.step_timer import StepTimer, end_step, enter_phase, flush, measuring


@pytest.fixture
def watch():
    """A clock that is set by hand."""
    return SimpleNamespace(time=100.0)


def timer(watch, before=None, *, every=0.0):
    return StepTimer(before, every=every, now=lambda: watch.time)


def spend(watch, **seconds):
    for phase, duration in seconds.items():
        enter_phase(phase)
        watch.time += duration


def test_phases_add_up_to_elapsed_time(watch, events):
    enter_phase("forward")  # without a timer: ignored
    end_step(rows=1)
    steps = timer(watch, before := {"feed": 10.0})
    with measuring(steps):
        watch.time += 0.5
        spend(watch, feed=1.0, forward=2.0, backward=3.0, exchange=4.0, update=5.0)
        end_step(clock=Clock(0, 1, 8), rows=4, sent=100)
    assert steps.seconds is before  # seconds are added to an earlier attempt's
    assert before == {"other": 0.5, "feed": 11.0, "forward": 2.0, "backward": 3.0, "exchange": 4.0, "update": 5.0}
    [event] = events
    assert (event.kind, event.rank, event.clock) == ("step", 3, {"epoch": 0, "step": 1, "samples": 8})
    payload = event.payload
    assert (payload["steps"], payload["rows"], payload["bytes"], payload["end"]) == (1, 4, 100, 15.5)
    assert payload["seconds"] == before | {"feed": 1.0}
    assert payload["marks"][:3] == [["other", 0.0], ["feed", 0.5], ["forward", 1.5]]


def test_event_sums_steps_since_previous_event(watch, events):
    with measuring(timer(watch, every=1.0)) as steps:
        for _ in range(10):
            spend(watch, forward=0.3)
            end_step(rows=2, sent=5)
        flush()
    assert [event.payload["steps"] for event in events] == [1, 4, 4, 1]
    assert sum(event.payload["rows"] for event in events) == 20
    assert sum(event.payload["bytes"] for event in events) == 50
    assert sum(event.payload["seconds"]["forward"] for event in events) == pytest.approx(3.0)
    assert steps.seconds["forward"] == pytest.approx(3.0)
    assert all(event.payload["end"] <= 0.3 + 1e-9 for event in events)  # the detail is of one step alone


def test_long_run_records_less_often(watch, events):
    with measuring(timer(watch, every=1.0)):
        for _ in range(60):
            spend(watch, forward=1_000.0)
            end_step()
        before = len(events)
        for _ in range(60):
            spend(watch, forward=1.5)
            end_step()
    assert before == 60
    assert len(events) - before < 45


def test_step_with_checkpoint_is_recorded_at_once(watch, events):
    with measuring(timer(watch, every=1e9)):
        spend(watch, forward=1.0)
        end_step()  # the timer always records the first step
        spend(watch, forward=1.0)
        end_step()
        spend(watch, forward=1.0, checkpoint=2.0)
        end_step()
    assert [event.payload["steps"] for event in events] == [1, 2]
    assert events[-1].payload["seconds"]["checkpoint"] == 2.0


def test_timer_belongs_to_thread_and_inner_timer_pauses_outer(watch, events):
    with measuring(timer(watch)) as outer:
        watch.time += 1.0
        thread = threading.Thread(target=lambda: spend(watch, forward=1.0))
        thread.start()
        thread.join()
        with measuring(timer(watch)) as inner:
            spend(watch, backward=5.0)
            flush()
        spend(watch, update=2.0)
        flush()
    assert inner.seconds == {"other": 0.0, "backward": 5.0}
    assert outer.seconds == {"other": 2.0, "update": 2.0}
