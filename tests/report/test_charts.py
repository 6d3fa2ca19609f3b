"""Limits and formats that the snapshot's small pages do not reach: long histories, many steps, units and labels."""

import pytest

from sparkdl.report import history_charts
from sparkdl.report.run_data import merged
from sparkdl.report.search_charts import search_charts
from sparkdl.report.style import MOST_POINTS, labels
from sparkdl.report.tables import page_tables
from sparkdl.report.time_charts import BINS, TimeUnit, dominant, phase_shares, rates, width
from sparkdl.telemetry.step_timer import PHASES
from tests.report.cases import rows
from tests.report.made import event, run, step

BEGIN = event("begin", 0)


def test_long_history_is_thinned_and_keeps_its_end():
    chart = history_charts.loss([run(history=rows(*(1 / epoch for epoch in range(1, 10_001))))])
    [line] = chart.figure.data
    assert MOST_POINTS // 2 < len(line.x) <= MOST_POINTS + 1
    assert (line.x[0], line.x[-1], line.y[-1]) == (1, 10_000, 1e-4)


def test_only_first_metrics_have_charts():
    many = {f"metric_{number}": 0.5 for number in range(100)}
    assert len(history_charts.metrics([run(history=[{"epoch": 1, **many}])])) == history_charts.MOST_METRICS


def test_long_names_are_cut_and_stay_unique():
    names = ["short", "a" * 100 + "/one", "a" * 100 + "/two", "a" * 99 + "/one", "<b>"]
    cut = [f"{'a' * 9}…{'a' * 14}/{end}" for end in ("one", "two", "one (4)")]
    assert labels(names) == ["short", *cut, "&lt;b&gt;"]


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [
        ([step(3.3 * number, number % 3, rows=7, forward=2.9, feed=0.31) for number in range(2, 60)], 200, 7 * 58),
        ([step(1, rows=10, forward=100.0)], 2, 0.1),  # most of it before the run
        ([step(5, rows=0, forward=1.0)], 10, None),
    ],
)
def test_rows_are_spread_over_steps_and_none_is_lost(steps, seconds, expected):
    by_rank, size = rates(run(BEGIN, *steps, event("end", seconds)))
    assert (sum(map(sum, by_rank.values())) * size if by_rank else None) == pytest.approx(expected)


def test_each_bin_has_its_longest_known_phase():
    steps = [step(40, forward=10.0, backward=30.0), step(60, feed=15.0, backward=5.0), step(90, 1, validate=1.0)]
    data = run(BEGIN, *steps, step(90, 1, napping=1.0), event("end", 100))
    phases = {rank: [None if at is None else PHASES[at] for at in row] for rank, row in dominant(data).items()}
    assert width(data) == pytest.approx(100 / BINS)
    assert phases[0] == ["backward"] * 160 + ["feed"] * 80 + [None] * 160
    assert phases[1] == [None] * 356 + ["validate"] * 4 + [None] * 40
    assert len(dominant(run(step(1, rows=10, forward=0.0)))) <= 1  # a run without duration


def test_startup_is_a_phase_of_every_rank():
    report = {"startup_seconds": 6.0, "phases_by_rank": [{"forward": 4.0}, {"forward": 2.0, "exchange": 2.0}]}
    chart = phase_shares([run(report=report)])
    assert chart is not None
    assert [(bar.name, [*bar.x]) for bar in chart.figure.data] == [
        ("start-up", [60.0, 60.0]), ("forward", [40.0, 20.0]), ("exchange", [0.0, 20.0])
    ]  # fmt: skip
    assert chart.figure.layout.xaxis.title.text == "% of the time"


@pytest.mark.parametrize(
    ("seconds", "name", "shown"), [(179, "seconds", 179), (600, "minutes", 10), (36e3, "hours", 10)]
)
def test_unit_of_time(seconds, name, shown):
    assert (TimeUnit.of(seconds).name, TimeUnit.of(seconds)(seconds)) == (name, shown)


DURATIONS = {0.25: "0.2 s", 60: "1 min 00 s", 3599: "59 min 59 s", 7325: "2 h 02 min"}
SIZES = {0: "0 B", 999: "999 B", 999_600: "1 MB", 5.2e9: "5.2 GB", 3e15: "3,000.0 TB"}


@pytest.mark.parametrize(
    ("report", "name", "shown"),
    [
        *(({"seconds": seconds}, "total time", shown) for seconds, shown in DURATIONS.items()),
        ({"startup_seconds": 12.5}, "start-up", "12.5 s"),
        *(({"bytes": count}, "exchanged", shown) for count, shown in SIZES.items()),
    ],
)
def test_figures(report, name, shown):
    assert page_tables([run(report=report)])["figures"][name] == shown


def test_credentials_are_removed():
    data = run(configuration={"runDir": "s3://KEY:SE/CRET@bucket/runs?secret_key=x"})
    [row] = page_tables([data])["configuration"].rows
    assert [cell.text for cell in row] == ["runDir", "s3://bucket/runs"]


TRIALS = [
    {"trial": 0, "learningRate": 1e-4, "batchSize": 64, "optimizer": "sgd", "state": "paused", "value": 0.7},
    {"trial": 1, "learningRate": 1e-1, "batchSize": 256, "optimizer": "adam", "state": "finished", "value": 0.9},
    {"trial": 2, "learningRate": 1e-2, "batchSize": 64, "optimizer": "sgd", "state": "failed", "value": None},
]


def test_charts_of_a_search():
    values = {0: [0.6, 0.7], 1: [0.5, 0.8, float("nan"), 0.9], 2: []}
    report = {"mode": "max", "best_trial": 1, "trials": [{"number": at, "history": one} for at, one in values.items()]}
    finished = run(history=TRIALS, report=report)
    # While the search runs, its events have the rows.
    events = [event("trials", 0, of=9, mode="max")]
    events += [
        event("trial", 1, **row, values=values[row["trial"]], ended=1, progress={"running": "1"}) for row in TRIALS
    ]
    running = run(*events, history=merged([], events))
    assert running.history == TRIALS
    for data in (finished, running):
        charts = search_charts(data)
        assert [*charts] == ["best-value", "trial-values", "coordinates"]
        best, lines, coordinates = (chart.figure.data for chart in charts.values())
        assert list(best[1].y) == [0.7, 0.9]
        assert [(list(line.x), list(line.y)) for line in lines] == [
            ([1, 2], [0.6, 0.7]),
            ([1, 2, 4], [0.5, 0.8, 0.9]),
            ([], []),
        ]
        axes = coordinates[0].dimensions
        assert [axis.label for axis in axes] == ["log10 learningRate", "batchSize", "optimizer", "value"]
        assert [list(axis["values"]) for axis in axes] == [[-4, -1], [64, 256], [0, 1], [0.7, 0.9]]
    assert (finished.unit, finished.best, finished.noun) == ("trial", 1, "trial")
    assert search_charts(run(history=rows(0.5))) == {}
