"""Options of the scheduled pipeline: backfill, redo, several metrics, checks, run ids, and validation alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mlflow import MlflowClient

from tests.cli.pipeline.week import DAY, DAYS, NEXT, ROWS, write

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_older_date_is_published_and_registered_only_by_force(small, store):
    small.keys = {"register": {"name": "week", "tracking_uri": store}}
    mlflow = MlflowClient(store)
    assert small.run(date=NEXT)[0] == 0
    later = small.versions.current()
    code, printed = small.run("--gate.margin", 1)
    assert mlflow.get_model_version_by_alias("week", "champion").tags["sparkdl.pipeline.version"] == later
    assert (code, small.versions.current()) == (0, later), printed
    assert f"passed, but {later} of a later date stays in use (--force publishes it)" in printed
    done = small.done()
    assert (done["passed"], done["published"], done["scores"]["version"]) == (True, False, later)
    assert done["registered"] is None
    assert json.loads(next(line for line in printed.splitlines() if line.startswith("{"))) == done
    code, printed = small.run("--gate.margin", 1, "--force")
    assert (code, small.versions.current()) == (0, done["version"]), printed
    assert f"published {done['version']}" in printed
    assert small.done() == {**done, "published": True, "registered": {"name": "week", "version": "2"}}
    assert mlflow.get_model_version_by_alias("week", "champion").tags["sparkdl.pipeline.version"] == done["version"]


def test_redo_trains_again_on_rows_read_again(small):
    assert small.run("--gate.compare", "false")[0] == 0
    first, etl = small.versions.current(), small.stages()["etl"]
    before = etl.read_text()
    write(small.folder / "raw", a=np.arange(ROWS * len(DAYS)) / 100.0)
    code, printed = small.run("--gate.compare", "false", "--redo")
    assert (code, etl.read_text() == before) == (0, False), printed
    assert small.versions.current() not in (None, first)
    assert len(small.versions.names()) == 2


@pytest.mark.parametrize("code", [0, 7])
def test_refused_model_ends_with_the_user_s_code_and_is_not_registered(small, store, code):
    small.keys = {"register": {"name": "week", "tracking_uri": store}}
    for _ in range(2):
        assert small.run("--gate.least", "1.1", f"--refused-exit-code={code}")[0] == code
    assert small.versions.current() is None
    done = json.loads((small.root / f"runs/{DAY}/done.json").read_text())
    assert (done["registered"], MlflowClient(store).search_registered_models()) == (None, [])


def test_all_metrics_of_the_gate_have_to_pass(small):
    area = {
        "class_path": "pyspark.ml.evaluation.BinaryClassificationEvaluator",
        "init_args": {"metricName": "areaUnderPR"},
    }
    for least, expected in ((0.5, 0), (1.5, 3)):
        metrics = json.dumps({"precision and recall": {"evaluator": area, "least": least}})
        code, printed = small.run("--gate.metrics", metrics, "--gate.margin", 1, "--redo")
        assert code == expected, printed
        assert [(name, metric["passed"]) for name, metric in small.done()["metrics"].items()] == [
            ("areaUnderROC", True),
            ("precision and recall", code == 0),
        ]


def test_input_that_fails_a_check_is_not_trained_on(small):
    checks = {"enough rows": "count(*) >= 1000", "both labels": "count(distinct label) = 2"}
    code, printed = small.run("--gate.checks", json.dumps(checks))
    assert (code, "the gate's checks: 'enough rows' (count(*) >= 1000)." in printed) == (4, True), printed
    assert (small.stages(), small.versions.names()) == ({}, [])
    assert small.run("--gate.checks", json.dumps(checks | {"enough rows": "count(*) >= 100"}))[0] == 0


def test_runs_of_a_scheduler_have_their_own_names(small):
    for run_id, words, name in (("hourly-7", ["--split.date", "null"], "hourly-7"), ("8", ["--date", DAY], f"{DAY}.8")):
        code, printed = small.job(
            *("etl_train", "--config", small.configured(), "--run-id", run_id, *words),
            *("--data.path", str(small.folder / "{run_id}")),
        )
        assert (code, "PATH_NOT_FOUND" in printed) == (4, True), printed
        write(small.folder / run_id)
        code, printed = small.job(
            *("etl_train", "--config", small.configured(), "--run-id", run_id, *words),
            *("--data.path", str(small.folder / "{run_id}")),
        )
        assert code in (0, 3), printed
        assert (small.root / f"runs/{name}/done.json").exists()
        assert (small.root / f"scores/run={name}/_SUCCESS").exists()
    code, printed = small.job("etl_train", "--config", small.configured(), "--run-id", "9")
    assert (code, "split.date is 'day', and the run has no date" in printed) == (2, True), printed


@pytest.mark.parametrize(
    ("arguments", "network", "expected", "text"),
    [
        ([], {}, 0, f"{DAY} is valid: 5 columns, 2 stages"),
        (["--gate.checks", "{rows: count(*)}"], {}, 2, "is of type bigint; expected a condition"),
        (["--gate.checks", "{rows: max(c) > 1}"], {}, 4, "cannot be checked"),
        (["--clean.drop", "[a]"], {}, 4, "No such struct field `a`"),
        (["--evaluator.labelCol", "target"], {}, 2, "labelCol of BinaryClassificationEvaluator is 'target'"),
        ([], {"featuresCol": "vector"}, 2, "there is no column 'vector'"),
        ([], {"numWorkers": 300}, 1, "300 workers need 300 task slots"),
        (["--score.data.path", "/nowhere"], {}, 4, "/nowhere"),
    ],
)
def test_check_validates_without_running(small, arguments, network, expected, text):
    code, printed = small.run("--check", *arguments, **network)
    assert (code, text in printed) == (expected, True), printed
    assert not small.root.exists()
