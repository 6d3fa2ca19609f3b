"""Where seconds and rows lie in the time of a run."""

from __future__ import annotations

import pytest

from sparkdl.telemetry.html.binning import BINS, dominant, rates, width
from sparkdl.telemetry.step_timer import PHASES
from tests.telemetry.html.made import event, run, step


def phases_of(row: list[int | None]) -> list[str | None]:
    return [None if each is None else PHASES[each] for each in row]


def test_rows_are_spread_over_the_time_of_their_steps():
    data = run(event("begin", 0), step(50, rows=1000, forward=10.0), event("end", 100))
    found, size = rates(data)
    assert size == pytest.approx(1.0)
    assert found[0][39:51] == pytest.approx([0.0, *[100.0] * 10, 0.0])
    assert sum(found[0]) * size == pytest.approx(1000)


def test_no_row_is_lost_however_steps_lie():
    steps = [step(3.3 * number, number % 3, rows=7, forward=2.9, feed=0.31) for number in range(2, 60)]
    found, size = rates(run(event("begin", 0), *steps))
    assert sorted(found) == [0, 1, 2]
    assert sum(sum(each) for each in found.values()) * size == pytest.approx(7 * len(steps))


def test_a_rank_without_rows_has_no_rate():
    assert rates(run(event("begin", 0), step(5, rows=0, forward=1.0)))[0] == {}


def test_each_moment_has_the_phase_that_took_most_of_it():
    data = run(
        event("begin", 0),
        step(40, forward=10.0, backward=30.0),
        step(60, feed=15.0, backward=5.0),
        step(90, 1, validate=1.0),
        event("end", 100),
    )
    found = {rank: phases_of(row) for rank, row in dominant(data).items()}
    assert width(data) == pytest.approx(100 / BINS)
    assert found[0][: BINS * 4 // 10] == ["backward"] * 160
    assert found[0][160:240] == ["feed"] * 80
    assert found[0][240:] == [None] * 160
    assert found[1][356:360] == ["validate"] * 4
    assert {*found[1][:356], *found[1][360:]} == {None}


def test_a_phase_that_nobody_knows_is_passed_over():
    data = run(event("begin", 0), step(10, napping=9.0, forward=1.0))
    assert {*phases_of(dominant(data)[0])} == {"forward"}


def test_what_began_before_the_run_is_cut_off():
    data = run(event("begin", 0), step(1, rows=10, forward=100.0), event("end", 2))
    found, size = rates(data)
    assert sum(found[0]) * size == pytest.approx(0.1)


def test_a_run_of_one_moment_can_be_cut_as_well():
    data = run(step(1, rows=10, forward=0.0))
    assert width(data) > 0
    assert len(dominant(data)) <= 1
