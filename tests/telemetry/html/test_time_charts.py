"""Charts of where the time of a run went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdl.telemetry.html import time_charts
from sparkdl.telemetry.html.style import PHASE_COLOURS, Unit, labels
from sparkdl.telemetry.step_timer import PHASES
from tests.telemetry.html.made import event, gang, lines, run, step

BEGIN, END = event("begin", 0), event("end", 100, error=None)


def marks(figure):
    """Where lines go across, by colour."""
    return [(shape.x0, shape.line.color) for shape in figure.layout.shapes]


# ---- throughput -------------------------------------------------------------------------------------------------


def test_the_throughput_of_ranks_is_one_on_top_of_the_other():
    steps = [step(100, rank, rows=1000, forward=100.0) for rank in (0, 1)]
    chart = time_charts.throughput([run(BEGIN, *steps, END)])
    assert [trace.name for trace in chart.figure.data] == ["rank 0", "rank 1"]
    assert {trace.stackgroup for trace in chart.figure.data} == {"rows"}
    assert list(chart.figure.data[0].y) == [10] * 100
    assert list(chart.figure.data[0].x)[:2] == [0.5, 1.5]
    assert list(chart.figure.layout.xaxis.range) == [0, 100]


def test_of_many_ranks_there_is_the_sum():
    steps = [step(100, rank, rows=100, forward=100.0) for rank in range(time_charts.MOST_LAYERS + 1)]
    [trace] = time_charts.throughput([run(BEGIN, *steps, END)]).figure.data
    assert list(trace.y) == [time_charts.MOST_LAYERS + 1] * 100


def test_of_several_runs_there_are_the_sums():
    chart = time_charts.throughput([gang("one"), gang("two")])
    assert [trace.name for trace in chart.figure.data] == ["one", "two"]
    assert chart.figure.layout.shapes == ()


def test_without_events_it_is_that_of_the_history():
    chart = time_charts.throughput(
        [run(history=[{"epoch": 1, "rows_per_second": 10.4}, {"epoch": 2, "rows_per_second": 20.0}])]
    )
    assert lines(chart.figure) == {"a run": ([1, 2], [10, 20])}
    assert time_charts.throughput([run(history=[{"epoch": 1, "loss": 0.5}])]) is None


def test_tasks_that_tell_of_no_rows_have_no_throughput():
    assert time_charts.throughput([run(BEGIN, step(5, forward=1.0), history=[{"round": 1, "primal": 1.0}])]) is None


# ---- phases -----------------------------------------------------------------------------------------------------


def test_shares_of_a_rank_add_up_to_the_whole():
    chart = time_charts.phase_shares(
        [run(BEGIN, step(9, 0, feed=1.0, forward=3.0), step(9, 1, forward=1.0, other=7.0))]
    )
    bars = {trace.name: list(trace.x) for trace in chart.figure.data}
    assert bars == {"feed": [25.0, 0.0], "forward": [75.0, 12.5], "other": [0.0, 87.5]}
    assert list(chart.figure.data[0].y) == ["rank 0", "rank 1"]
    assert [list(trace.customdata) for trace in chart.figure.data][1] == [3.0, 1.0]
    assert [trace.marker.color for trace in chart.figure.data] == [PHASE_COLOURS[name] for name in bars]


def test_of_more_ranks_than_fit_there_are_the_busiest():
    steps = [step(9, rank, forward=1.0 + (rank == 90), exchange=9.0 - (rank == 5)) for rank in range(100)]
    data = run(BEGIN, *steps)
    chart = time_charts.phase_shares([data])
    assert len(chart.figure.data[0].y) == time_charts.MOST_RANKS
    assert "rank 90" in chart.figure.data[0].y
    assert chart.note == "The busiest 64 of 100 ranks."
    shown = time_charts.timeline(data)
    assert list(shown.figure.data[0].y) == list(chart.figure.data[0].y)
    assert shown.note.endswith("The busiest 64 of 100 ranks.")


def test_of_several_runs_there_is_the_mean():
    one = run(step(9, 0, feed=4.0), step(9, 1, forward=4.0), name="one")
    two = run(step(9, 0, feed=1.0), name="two")
    chart = time_charts.phase_shares([one, two, run(name="none")])
    assert {trace.name: list(trace.x) for trace in chart.figure.data} == {"feed": [50.0, 100.0], "forward": [50.0, 0.0]}
    assert list(chart.figure.data[0].y) == ["one", "two"]


def test_without_measured_steps_there_are_no_shares():
    assert time_charts.phase_shares([run(BEGIN, END)]) is None


# ---- the timeline -----------------------------------------------------------------------------------------------


def test_the_timeline_has_a_row_for_each_rank():
    data = run(BEGIN, step(50, 0, forward=50.0), step(50, 1, feed=25.0), END)
    chart = time_charts.timeline(data)
    heatmap, *legend = chart.figure.data
    assert list(heatmap.y) == ["rank 0", "rank 1"]
    assert [len(row) for row in heatmap.z] == [400, 400]
    assert (heatmap.z[0][0], heatmap.z[0][250], heatmap.z[1][150]) == (PHASES.index("forward"), None, 0)
    assert heatmap.text[1][150] == "feed"
    assert [trace.name for trace in legend] == ["feed", "forward"]
    assert (heatmap.x0, heatmap.dx) == (0.125, 0.25)


def test_the_colours_of_the_timeline_are_those_of_the_phases():
    heatmap = time_charts.timeline(run(BEGIN, step(50, forward=1.0), END)).figure.data[0]
    scale = [tuple(each) for each in heatmap.colorscale]
    for index, phase in enumerate(PHASES):
        place = (index - heatmap.zmin) / (heatmap.zmax - heatmap.zmin)
        [below] = [shade for at, shade in scale[2 * index : 2 * index + 1] if at <= place]
        assert below == PHASE_COLOURS[phase]


def test_restarts_and_a_second_fit_are_lines_across():
    again = [event("begin", 86_400), event("end", 86_450, error=None)]
    data = run(BEGIN, step(20, forward=10.0), event("restart", 40, cause="lost", seconds=1.0), END)
    chart = time_charts.timeline(data)
    assert marks(chart.figure) == [(40, "#D55E00")]
    assert [trace.name for trace in chart.figure.data[1:]] == ["forward", "restart"]
    twice = run(*data.events, *(replace(each, time=each.time - 86_300) for each in again))
    assert marks(time_charts.timeline(twice).figure) == [(40, "#D55E00"), (100, "#7D7D7D")]


def test_without_phases_there_is_no_timeline():
    assert time_charts.timeline(run(BEGIN, END)) is None


def test_only_a_run_that_is_over_has_a_file_with_single_steps():
    assert "timeline.json" in time_charts.timeline(run(BEGIN, step(9, forward=1.0), END)).note
    assert "timeline.json" not in time_charts.timeline(run(BEGIN, step(9, forward=1.0))).note


# ---- members ----------------------------------------------------------------------------------------------------


def test_members_over_time():
    chart = time_charts.workers(gang())
    assert lines(chart.figure)["members"] == ([0, 7, 12], [2, 1, 1])
    assert marks(chart.figure) == [(6, "#D55E00")]
    assert chart.figure.layout.yaxis.dtick == 1


def test_where_there_were_always_as_many_members_there_is_no_chart_of_them():
    for count in (0, 1, 3):
        attempts = [event("attempt", at, attempt=at, size=2) for at in range(count)]
        assert time_charts.workers(run(BEGIN, *attempts, END)) is None


# ---- names and units ------------------------------------------------------------------------------------------


def test_long_names_of_runs_are_cut_and_stay_apart():
    names = ["short", "a" * 100 + "/one", "a" * 100 + "/two", "a" * 99 + "/one", "<b>"]
    found = labels(names)
    assert found == ["short", *(f"{'a' * 9}…{'a' * 14}/{end}" for end in ("one", "two", "one (4)")), "&lt;b&gt;"]
    assert len({*found}) == len(names)


@pytest.mark.parametrize(
    ("seconds", "name", "shown"),
    [(0.0, "seconds", 0.0), (179.0, "seconds", 179.0), (600.0, "minutes", 10.0), (36_000.0, "hours", 10.0)],
)
def test_time_is_told_in_numbers_that_are_not_too_long(seconds, name, shown):
    unit = Unit.of(seconds)
    assert (unit.name, unit(seconds)) == (name, shown)


def test_a_long_run_is_told_in_hours():
    data = run(
        BEGIN,
        step(20_000, rows=10, forward=10.0),
        event("restart", 18_000, cause="", seconds=0.0),
        event("end", 36_000),
    )
    assert time_charts.throughput([data]).figure.layout.xaxis.title.text == "hours from the start"
    assert marks(time_charts.timeline(data).figure) == [(5.0, "#D55E00")]
    assert list(time_charts.timeline(data).figure.layout.xaxis.range) == [0, 10]
