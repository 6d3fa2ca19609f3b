"""Timing of workers' steps by phase, and the verdict on them."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from sparkdl.data.clock import Clock
from sparkdl.telemetry.bottlenecks import PhaseTotals, spending, verdict, with_startup
from sparkdl.telemetry.step_timer import StepTimer, end_step, enter_phase, flush, measuring
from tests.report.made import START, event


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
        spend(watch, feed=1.0, forward=2.0, backward=3.0, exchange=4.0, update=2.0)
        spend(watch, update=3.0)  # a phase that goes on has one mark
        end_step(clock=Clock(0, 1, 8), rows=4, sent=100)
    assert steps.seconds is before  # seconds are added to an earlier attempt's
    assert before == {"other": 0.5, "feed": 11.0, "forward": 2.0, "backward": 3.0, "exchange": 4.0, "update": 5.0}
    [event] = events
    assert (event.kind, event.rank, event.clock) == ("step", 3, {"epoch": 0, "step": 1, "samples": 8})
    payload = event.payload
    assert (payload["steps"], payload["rows"], payload["bytes"], payload["end"]) == (1, 4, 100, 15.5)
    assert payload["seconds"] == before | {"feed": 1.0}
    begun = [["other", 0.0], ["feed", 0.5], ["forward", 1.5], ["backward", 3.5], ["exchange", 6.5], ["update", 10.5]]
    assert payload["marks"] == begun


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


# ---- verdict ------------------------------------------------------------------------------------------------------

EVEN = {"feed": 1.0, "forward": 3.0, "backward": 4.0, "exchange": 1.0, "update": 1.0}


def test_spending_by_phase_and_rank() -> None:
    slow = EVEN | {"forward": 9.0, "exchange": 0.0}
    summary = spending([EVEN, EVEN, {name: seconds for name, seconds in slow.items() if seconds}], ["a", "b", "c"])
    assert summary["phases"] == {"feed": 1.0, "forward": 5.0, "backward": 4.0, "exchange": 0.666667, "update": 1.0}
    assert summary["phases_by_rank"] == [EVEN, EVEN, slow]
    assert summary["skew_by_rank"] == [1.0, 1.0, pytest.approx(15 / 9, abs=1e-3)]
    assert summary["slowest_rank"] == 2
    assert summary["verdict"] == verdict([EVEN, EVEN, slow], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("phases", "sentence"),
    [
        (
            [EVEN, EVEN],
            "Compute-bound: 80% of the time goes into the model, 10% into waiting for batches, 10% into the exchange.",
        ),
        ([{"feed": 6.0, "forward": 4.0}], "Feed-bound: 60% of the time is spent waiting for batches"),
        ([{"forward": 4.0, "exchange": 6.0}] * 2, "Exchange-bound: 60% of the time goes into the exchange even on"),
        ([{"forward": 4.0, "validate": 6.0}], "Bound by validation: 60% of the time."),
        ([{"forward": 8.0, "checkpoint": 2.0}], "20% goes into waiting for checkpoints to be copied."),
        ([{"forward": 8.0, "callbacks": 2.0}], "20% goes into callbacks."),
    ],
)
def test_verdict_names_bottleneck(phases, sentence) -> None:
    assert sentence in verdict(phases)


def test_wait_for_slowest_rank_is_not_exchange_bound() -> None:
    waiting = EVEN | {"exchange": 19.0}
    text = verdict([waiting, EVEN | {"feed": 19.0}, waiting], ["a", "b", "c"])
    assert "Exchange-bound" not in text
    assert "Feed-bound" in text
    assert "Rank 1 on b is the slowest, 3.0 times as busy as the median, most of it in feed" in text
    assert "others wait up to 64% of their time" in text


@pytest.mark.parametrize(
    ("seconds", "parts", "words"),
    [
        (100.0, {"session": 5, "workers": 30, "imports": 40}, "90% of this fit's 100.0 s, most of it imports: load"),
        (100.0, {"session": 5.0, "workers": 50.0, "imports": 9.0}, "most of it workers: persist the rows that Spark"),
        (100.0, {}, "most of it other: train longer"),
        (16.0, {"imports": 6.0}, "38% of this fit's 16.0 s, most of it imports"),
        (12.0, {"imports": 2.0}, ""),
    ],
)
def test_verdict_on_a_long_startup_advises_what_shortens_it(seconds, parts, words) -> None:
    steps = spending([EVEN | {"forward": 0.0, "exchange": 4.0}] * 2)
    report = with_startup({"seconds": seconds, **steps}, parts)
    assert report["startup_seconds"] == seconds - 10.0
    assert report["startup"] == parts | {"other": seconds - 10.0 - sum(parts.values())}
    assert words in report["verdict"]
    assert ("use larger batches" in report["verdict"]) == (seconds < 20)
    assert ("spark.python.daemon.module" in report["verdict"]) == (seconds > 12 and bool(parts))
    assert with_startup({"seconds": 1.0}, parts) == {"seconds": 1.0}


def test_startup_is_summed_over_attempts_and_counts_the_slowest_rank() -> None:
    totals = PhaseTotals()
    totals.start = START - 2.0
    for attempt, at in ((0, 0.0), (1, 20.0)):
        totals(event("attempt", at, attempt=attempt, size=2))
        for rank, imports in ((0, 1.0), (1, 3.0)):
            totals(event("span", at + 5, rank, attempt=attempt, name="imports", start=START, seconds=imports))
            totals(event("started", at + 5 + rank, rank, attempt=attempt))
            for name in ("imports", "feed", "join", "mine"):
                totals(event("span", at + 7, rank, attempt=attempt, name=name, start=START, seconds=0.5))
    assert totals.startup() == {"session": 2.0, "workers": 8.0, "imports": 7.0, "feed": 1.0}


def test_no_phases_have_no_verdict() -> None:
    assert verdict([]) == verdict([{}, {}]) == ""
    assert "slowest" not in verdict([EVEN, EVEN | {"forward": 3.5}])
    summary = spending([])
    assert (summary["phases"], summary["slowest_rank"], summary["verdict"]) == ({}, None, "")
