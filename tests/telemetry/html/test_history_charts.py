"""Charts of a run's history."""

from __future__ import annotations

import math

import pytest

from sparkdl.telemetry.html import history_charts
from sparkdl.telemetry.html.style import LINES, MOST_POINTS
from tests.telemetry.html.made import gang, lines, progress, run

ADMM = [{"round": each, "primal": 2.0 / each, "dual": 1.0 / each, "rho": 0.1, "seconds": 1.0} for each in (1, 2, 3)]


def rows(*values: float, name: str = "loss") -> list[dict[str, float]]:
    return [{"epoch": epoch, name: value} for epoch, value in enumerate(values, start=1)]


# ---- losses -----------------------------------------------------------------------------------------------------


def test_losses_are_drawn_by_epoch():
    chart = history_charts.loss(
        [run(history=[{"epoch": 1, "loss": 0.5, "valid_loss": 0.75}, {"epoch": 2, "loss": 0.25}])]
    )
    assert lines(chart.figure) == {"loss": ([1, 2], [0.5, 0.25]), "valid_loss": ([1], [0.75])}
    assert chart.figure.layout.xaxis.title.text == "epoch"


def test_an_objective_counts_as_a_loss():
    chart = history_charts.loss([run(history=[{"round": 1, "objective": 0.5, "gradient": 0.1}])])
    assert list(lines(chart.figure)) == ["objective"]
    assert chart.figure.layout.xaxis.title.text == "round"


def test_what_is_no_number_leaves_a_gap():
    chart = history_charts.loss([run(history=rows(0.5, math.nan, math.inf, 0.25))])
    assert lines(chart.figure) == {"loss": ([1, 4], [0.5, 0.25])}


def test_nothing_is_drawn_of_nothing():
    for data in (run(), run(history=[{"epoch": 1, "loss": None, "note": "text", "best": True}])):
        assert history_charts.loss([data]) is None
        assert history_charts.metrics([data]) == []
        assert history_charts.residuals([data]) is None
        assert history_charts.members(data) is None


def test_rows_that_do_not_say_what_they_are_of_are_counted():
    assert lines(history_charts.loss([run(history=[{"loss": 0.5}, {"loss": 0.25}])]).figure) == {
        "loss": ([1, 2], [0.5, 0.25])
    }


def test_a_long_history_is_thinned_and_keeps_its_end():
    chart = history_charts.loss([run(history=rows(*(1 / each for each in range(1, 10_001))))])
    [(x, y)] = lines(chart.figure).values()
    assert MOST_POINTS // 2 < len(x) <= MOST_POINTS + 1
    assert (x[0], x[-1], y[-1]) == (1, 10_000, 1e-4)
    assert x == sorted(x)


def test_numbers_have_the_digits_that_can_be_seen():
    assert lines(history_charts.loss([run(history=rows(1 / 3))]).figure)["loss"][1] == [0.333333]


def test_the_running_loss_is_broken_where_an_attempt_went_back():
    told = [progress(step, 1 / step, at=step) for step in (1, 4, 8, 12)]
    told += [progress(step, 1 / step, attempt=1, at=20 + step) for step in (6, 10)]
    told += [progress(9, 7.0, rank=1, at=9), progress(11, None, at=11), progress(11, math.nan, at=11)]
    chart = history_charts.loss([run(*told, history=rows(0.5))])
    x, y = lines(chart.figure)["loss of rank 0 since the epoch began"]
    assert x == [0.1, 0.4, 0.8, 1.2, None, 0.6, 1.0]
    assert y == [1.0, 0.25, 0.125, 0.0833333, None, 0.166667, 0.1]


def test_the_running_loss_is_left_out_where_epochs_are_as_short():
    told = [progress(10 * epoch + 1, 0.5, at=epoch) for epoch in range(3)]
    assert list(lines(history_charts.loss([run(*told, history=rows(1.0, 0.5, 0.25))]).figure)) == ["loss"]


def test_before_the_first_epoch_is_over_there_is_the_running_loss():
    chart = history_charts.loss([run(progress(1, 0.5, at=1), progress(4, 0.25, at=2))])
    assert [y for _, y in lines(chart.figure).values()] == [[0.5, 0.25]]


# ---- metrics ----------------------------------------------------------------------------------------------------


def test_each_metric_has_a_chart_with_that_of_the_validation_rows():
    history = [{"epoch": 1, "loss": 0.5, "accuracy": 0.9, "valid_accuracy": 0.8, "valid_f1": 0.7, "seconds": 1.0}]
    charts = history_charts.metrics([run(history=history)])
    assert [chart.title for chart in charts] == ["accuracy, valid_accuracy", "valid_f1"]
    assert [list(lines(chart.figure)) for chart in charts] == [["accuracy", "valid_accuracy"], ["valid_f1"]]
    assert [chart.figure.layout.showlegend for chart in charts] == [True, False]


def test_what_says_where_a_row_belongs_is_no_metric():
    aside = ("epoch", "round", "member", "step", "samples", "seconds", "rows_per_second", "seed", "fold", "base")
    assert history_charts.metrics([run(history=[dict.fromkeys(aside, 1.0)])]) == []


def test_there_are_not_more_charts_than_one_can_look_at():
    many = {f"metric_{number}": 0.5 for number in range(100)}
    assert len(history_charts.metrics([run(history=[{"epoch": 1, **many}])])) == history_charts.MOST_METRICS


def test_names_are_no_tags_for_plotly():
    [chart] = history_charts.metrics([run(history=[{"epoch": 1, "<b>f1</b>": 0.5}])])
    assert chart.title == "<b>f1</b>"
    assert [trace.name for trace in chart.figure.data] == ["&lt;b&gt;f1&lt;/b&gt;"]


# ---- rounds and ensembles ---------------------------------------------------------------------------------------


def test_residuals_are_on_a_logarithmic_scale():
    chart = history_charts.residuals([run(history=ADMM)])
    assert lines(chart.figure) == {
        "primal": ([1, 2, 3], [2.0, 1.0, 0.666667]),
        "dual": ([1, 2, 3], [1.0, 0.5, 0.333333]),
    }
    assert chart.figure.layout.yaxis.type == "log"
    assert [each.title for each in history_charts.metrics([run(history=ADMM)])] == ["rho"]
    assert history_charts.loss([run(history=ADMM)]) is None


def test_members_of_an_ensemble_have_a_bar_and_points():
    history = [
        {"member": member, "epoch": 5, "step": 50, "loss": loss, "seconds": 10.0 + member}
        for member, loss in enumerate((0.5, 0.3, 0.4))
    ]
    data = run(history=history)
    [bars] = history_charts.members(data).figure.data
    assert (bars.type, list(bars.x), list(bars.y)) == ("bar", [0, 1, 2], [10.0, 11.0, 12.0])
    [points] = history_charts.loss([data]).figure.data
    assert (points.mode, list(points.x), list(points.y)) == ("markers", [0, 1, 2], [0.5, 0.3, 0.4])


def test_members_of_stacking_say_where_they_belong():
    history = [
        {"member": 0, "base": 0, "fold": 1, "seconds": 1.0},
        {"member": 1, "base": None, "fold": None, "seconds": 2.0},
    ]
    [bars] = history_charts.members(run(history=history)).figure.data
    assert list(bars.text) == ["base 0, fold 1", ""]


def test_a_gang_has_no_chart_of_members():
    assert history_charts.members(gang()) is None


# ---- several runs -----------------------------------------------------------------------------------------------


def test_each_of_several_runs_has_a_colour():
    chart = history_charts.loss([gang("one"), gang("two")])
    assert [trace.name for trace in chart.figure.data] == [
        "one: loss",
        "one: valid_loss",
        "two: loss",
        "two: valid_loss",
    ]
    assert [trace.line.color for trace in chart.figure.data] == [LINES[0], LINES[0], LINES[1], LINES[1]]
    assert [trace.line.dash for trace in chart.figure.data] == [None, "dash", None, "dash"]


def test_a_gang_and_rounds_are_on_one_chart():
    chart = history_charts.loss([gang("one"), run(history=[{"round": 1, "loss": 0.5}], name="two")])
    assert chart.figure.layout.xaxis.title.text == "epoch, round"
    assert "two: loss" in lines(chart.figure)


@pytest.mark.parametrize("names", [["accuracy"], ["accuracy", "recall"]])
def test_a_metric_that_one_of_them_has_is_drawn(names):
    others = [run(history=[{"epoch": 1, name: 0.5}], name=name) for name in names]
    charts = history_charts.metrics([run(history=rows(0.5)), *others])
    assert [chart.title for chart in charts] == names
    assert [list(lines(chart.figure)) for chart in charts] == [[f"{name}: {name}"] for name in names]
