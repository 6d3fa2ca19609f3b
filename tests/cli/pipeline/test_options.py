"""Options of the scheduled pipeline: run ids, no comparison, and validation alone."""

from __future__ import annotations

import json

import pytest

from tests.cli.pipeline.week import DAY, write

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_run_of_a_scheduler_has_its_own_name_and_need_not_compare_models(small):
    """test_job.py has a run with a date as well."""
    other = small.root / "versions/other/model/metadata"  # nobody can load it
    other.mkdir(parents=True)
    (other / "part-00000").touch()
    small.versions.complete("other", {"run": "other", "date": None})
    small.versions.publish("other")
    words = ("--run-id", "hourly-7", "--split.date", "null", "--data.path", small.folder / "{run_id}")
    for expected in (4, 0):
        code, printed = small.job("etl_train", "--config", small.configured(), *words, "--gate.compare", "false")
        assert (code, "PATH_NOT_FOUND" in printed) == (expected, expected == 4), printed
        write(small.folder / "hourly-7")
    done = json.loads((small.root / "runs/hourly-7/done.json").read_text())
    assert (done["current"], [metric["in_use"] for metric in done["metrics"].values()]) == ("other", [None])
    assert small.versions.current() == done["version"]
    assert (small.root / "scores/run=hourly-7/_SUCCESS").exists()
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
