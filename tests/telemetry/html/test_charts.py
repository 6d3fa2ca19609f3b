"""Limits of the page's charts, and how names and times are shortened."""

from __future__ import annotations

import pytest

from sparkdl.telemetry.html import history_charts
from sparkdl.telemetry.html.style import MOST_POINTS, Unit, labels
from tests.telemetry.html.cases import rows
from tests.telemetry.html.made import lines, run


def test_a_long_history_is_thinned_and_keeps_its_end():
    chart = history_charts.loss([run(history=rows(*(1 / each for each in range(1, 10_001))))])
    [(x, y)] = lines(chart.figure).values()
    assert MOST_POINTS // 2 < len(x) <= MOST_POINTS + 1
    assert (x[0], x[-1], y[-1]) == (1, 10_000, 1e-4)
    assert x == sorted(x)


def test_only_the_first_metrics_have_a_chart():
    many = {f"metric_{number}": 0.5 for number in range(100)}
    assert len(history_charts.metrics([run(history=[{"epoch": 1, **many}])])) == history_charts.MOST_METRICS


def test_long_names_of_runs_are_cut_and_stay_apart():
    names = ["short", "a" * 100 + "/one", "a" * 100 + "/two", "a" * 99 + "/one", "<b>"]
    found = labels(names)
    assert found == ["short", *(f"{'a' * 9}…{'a' * 14}/{end}" for end in ("one", "two", "one (4)")), "&lt;b&gt;"]
    assert len({*found}) == len(names)


@pytest.mark.parametrize(
    ("seconds", "name", "shown"),
    [(0.0, "seconds", 0.0), (179.0, "seconds", 179.0), (600.0, "minutes", 10.0), (36_000.0, "hours", 10.0)],
)
def test_the_unit_of_time_keeps_numbers_short(seconds, name, shown):
    unit = Unit.of(seconds)
    assert (unit.name, unit(seconds)) == (name, shown)
