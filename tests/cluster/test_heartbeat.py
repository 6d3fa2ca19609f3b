"""Heartbeats, and which worker is lost or stuck: arithmetic on made-up events."""

import threading

import pytest

from sparkdl.cluster.heartbeat import HeartbeatMonitor, beating, interval
from sparkdl.telemetry.event import Event


def monitor(*received, timeout=60.0):
    """A monitor that received (time, rank, step, options of the event)."""
    heartbeats = HeartbeatMonitor(0, timeout=timeout, stall=600.0)
    for now, rank, step, *options in received:
        values = {"kind": "heartbeat", "phase": "work", "attempt": 0} | dict(*options)
        clock = None if step is None else {"epoch": 0, "step": step, "samples": 0}
        payload = {"host": f"host{rank}", "phase": values["phase"]}
        heartbeats.note(Event(values["kind"], rank, values["attempt"], 0.0, clock, payload), float(now))
    return heartbeats


def alive(until, *steps):
    """Heartbeats every 10 s of workers that stay at their steps."""
    return [(now, rank, step) for now in range(0, until, 10) for rank, step in enumerate(steps)]


@pytest.mark.parametrize(("timeout", "expected"), [(60, 10), (600, 10), (3, 0.5), (0.3, 0.2)])
def test_several_heartbeats_fit_into_timeout(timeout, expected):
    assert interval(timeout) == expected


def test_silent_worker_is_lost():
    heartbeats = monitor((0, 0, 5), (0, 1, 5), (50, 0, 6))
    assert heartbeats.lost(60.0) is None
    error = heartbeats.lost(61.0)
    assert "rank 1 sent nothing for 61 s" in error.message
    assert (error.rank, error.host, error.stage, error.attempt, error.step) == (1, "host1", "work", 0, 5)


@pytest.mark.parametrize(
    ("received", "now"),
    [
        ([(0, 0, 5), (50, 0, 5, {"kind": "progress"})], 100.0),  # any event is a sign of life
        ([(0, 0, 5), (1, 0, 5, {"kind": "failed"}), (2, 0, 5)], 1000.0),  # the worker has ended; one was on its way
        ([(0, 0, 5), (1, 0, 5, {"kind": "finished"}), (2, 0, 5)], 1000.0),
        ([(0, 0, None, {"kind": "started"})], 1e6),  # without a heartbeat
        ([(0, 0, 5, {"attempt": 1})], 1000.0),
        ([*alive(2000, 40, 40), (2001, 0, None)], 2001.0),  # the first step after a resume at step 40
    ],
)
def test_worker_is_not_lost(received, now):
    assert monitor(*received).lost(now) is None


def test_time_in_which_driver_did_not_run_does_not_count():
    heartbeats = monitor((0, 0, 5))
    heartbeats.extend_deadlines(300.0)
    assert heartbeats.lost(350.0) is None
    assert heartbeats.lost(361.0) is not None


def test_stuck_gang_names_worker_behind():
    error = monitor((0, 0, 3), (0, 1, 3), *alive(700, 8, 7)).lost(700.0)
    assert "rank 1 is alive but made no progress for 600 s, at step 7 in phase work" in error.message
    assert error.step == 7


def test_a_worker_that_waits_for_a_slow_one_is_not_stuck():
    """As at the end of a block of local steps."""
    moving = [(time, 1, time // 100) for time in range(0, 1300, 100)]
    heartbeats = monitor((0, 0, 3), (10, 0, 8), *moving, timeout=2000.0)
    assert heartbeats.lost(1250.0) is None
    assert "rank 0" in heartbeats.lost(1900.0).message


def test_another_phase_is_progress():
    validates = [(590, 0, 2, {"phase": "validate"}), (1180, 0, 2, {"phase": "validate"})]
    heartbeats = monitor((0, 0, 1), (10, 0, 2), *validates, timeout=1000.0)
    assert heartbeats.lost(1185.0) is None
    assert heartbeats.lost(1191.0) is not None


def test_first_heartbeat_is_immediate_and_others_come_from_a_thread():
    beats, twice = [], threading.Event()

    def beat():
        beats.append(threading.current_thread().name)
        if len(beats) == 2:
            twice.set()

    with beating(beat, 0.001):
        assert beats[0] == threading.current_thread().name
        assert twice.wait(30)
    assert set(beats[1:]) == {"sparkdl-heartbeat"}
    assert "sparkdl-heartbeat" not in {thread.name for thread in threading.enumerate()}
    with beating(lambda: pytest.fail("a heartbeat"), None):
        pass
