"""A search whose trials train on executors, one of which is lost."""

from __future__ import annotations

import pytest

from tests.ml.rows import ARRAYS
from tests.ml.tuning.test_tuner import assert_same, classifier, search_of, tuner
from tests.sessions import frame


@pytest.mark.chaos
def test_a_lost_executor_costs_no_rung_and_changes_no_bit(spark, tmp_path):
    data = frame(ARRAYS).cache()
    undisturbed = tuner(estimator=classifier()).fit(data)
    model = search_of(tmp_path, "executor").fit(data)
    assert (tmp_path / "mark").exists()
    assert [trial["state"] for trial in model.trials].count("failed") == 0
    assert [trial["values"] for trial in model.trials] == [trial["values"] for trial in undisturbed.trials]
    assert_same(model.bestModel, undisturbed.bestModel)
