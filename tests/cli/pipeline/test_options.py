"""Options of the scheduled pipeline: run ids, and validation alone."""

from __future__ import annotations

import pytest

from tests.cli.pipeline.week import DAY, write

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


def test_run_of_a_scheduler_has_its_own_name(small):
    """test_job.py has a run with a date as well."""
    words = ("--run-id", "hourly-7", "--split.date", "null", "--data.path", small.folder / "{run_id}")
    for expected in (4, 0):
        code, printed = small.job("etl_train", "--config", small.configured(), *words)
        assert (code, "PATH_NOT_FOUND" in printed) == (expected, expected == 4), printed
        write(small.folder / "hourly-7")
    assert (small.root / "runs/hourly-7/done.json").exists()
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
