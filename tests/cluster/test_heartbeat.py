"""Signs of life, and who is given up for want of them: arithmetic on made-up events, no process and no clock."""

from __future__ import annotations

import threading

import pytest

from sparkdl.cluster.heartbeat import HeartbeatMonitor, beating, interval
from sparkdl.telemetry.event import Event


def beat(rank=0, step=None, phase="work", attempt=0, kind="heartbeat"):
    clock = None if step is None else {"epoch": 0, "step": step, "samples": 0}
    return Event(kind, rank, attempt, 0.0, clock, {"host": f"host{rank}", "phase": phase})


def pulse(**limits):
    return HeartbeatMonitor(0, **{"timeout": 60.0, "stall": 600.0} | limits)


@pytest.mark.parametrize(("timeout", "expected"), [(60, 10), (600, 10), (3, 0.5), (0.3, 0.2)])
def test_several_heartbeats_fit_into_the_timeout(timeout, expected):
    assert interval(timeout) == expected


def test_who_is_silent_for_too_long_is_lost():
    heard = pulse()
    heard.note(beat(0, 5), 0.0)
    heard.note(beat(1, 5), 0.0)
    heard.note(beat(0, 6), 50.0)
    assert heard.lost(60.0) is None
    error = heard.lost(61.0)
    assert "rank 1 has not been heard of for 61 s" in error.message
    assert (error.rank, error.host, error.stage, error.attempt, error.step) == (1, "host1", "work", 0, 5)


def test_any_event_is_a_sign_of_life():
    heard = pulse()
    heard.note(beat(0, 5), 0.0)
    heard.note(beat(0, 5, kind="progress"), 50.0)
    assert heard.lost(100.0) is None


@pytest.mark.parametrize("kind", ["failed", "finished"])
def test_who_has_ended_need_not_be_heard_of(kind):
    heard = pulse()
    heard.note(beat(0, 5), 0.0)
    heard.note(beat(0, 5, kind=kind), 1.0)
    heard.note(beat(0, 5), 2.0)  # it was on its way
    assert heard.lost(1000.0) is None


def test_who_was_never_heard_of_is_not_judged():
    heard = pulse()
    heard.note(beat(0, kind="started"), 0.0)
    assert heard.lost(1e6) is None


def test_events_of_an_earlier_attempt_are_nobodys_life():
    heard = pulse()
    heard.note(beat(0, 5, attempt=1), 0.0)
    assert heard.lost(1000.0) is None


def test_time_in_which_the_driver_did_not_run_does_not_count():
    heard = pulse()
    heard.note(beat(0, 5), 0.0)
    heard.extend_deadlines(300.0)
    assert heard.lost(350.0) is None
    assert heard.lost(361.0) is not None


def alive(heard, until, *, steps, phase="work"):
    """Members that beat every 10 s and stay at their steps."""
    for now in range(0, until, 10):
        for rank, step in enumerate(steps):
            heard.note(beat(rank, step, phase), float(now))


def test_a_gang_that_does_not_move_is_stuck_and_the_one_behind_is_named():
    heard = pulse()
    alive(heard, 10, steps=(3, 3))
    alive(heard, 700, steps=(8, 7))
    error = heard.lost(700.0)
    assert "rank 1 lives but has been at step 7, work, for 600 s" in error.message
    assert error.step == 7


def test_the_first_step_takes_as_long_as_it_takes():
    heard = pulse()
    alive(heard, 2000, steps=(40, 40))  # resumed at step 40
    assert heard.lost(2000.0) is None
    heard.note(beat(0), 2001.0)
    assert heard.lost(2001.0) is None


def test_another_phase_is_progress():
    heard = pulse(timeout=1000.0)
    heard.note(beat(0, 1), 0.0)
    heard.note(beat(0, 2), 10.0)
    heard.note(beat(0, 2, "validate"), 590.0)
    heard.note(beat(0, 2, "validate"), 1180.0)
    assert heard.lost(1185.0) is None
    assert heard.lost(1191.0) is not None


def test_the_first_beat_is_at_once_and_the_others_come_from_a_thread_until_the_block_ends():
    beats, twice = [], threading.Event()

    def note():
        beats.append(threading.current_thread().name)
        if len(beats) == 2:
            twice.set()

    with beating(note, 0.001):
        assert beats[0] == threading.current_thread().name
        assert twice.wait(30)
    assert set(beats[1:]) == {"sparkdl-heartbeat"}
    assert "sparkdl-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_without_an_interval_there_are_none():
    with beating(lambda: pytest.fail("a beat"), None):
        pass
