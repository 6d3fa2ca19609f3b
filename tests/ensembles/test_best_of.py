"""The best of several candidates, by metrics that equal those of pyspark.ml."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F

from sparkdl import TorchRegressor
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.ensembles.best_of import BestOf, _best
from sparkdl.ensembles.resampling.bootstrap import uniform
from sparkdl.errors import InvalidInput, Stopped
from tests.ensembles.fakes import ARRAYS, ROWS, Crippled, Memoriser, X, Y
from tests.ml import nets


def good() -> LinearRegression:
    return LinearRegression(labelCol="y")


def best_of(candidates: list[Any], **given: Any) -> BestOf:
    evaluator = RegressionEvaluator(labelCol="y", metricName="rmse")
    return BestOf(**{"candidates": candidates, "evaluator": evaluator, "numFolds": 2, "idCol": "row"} | given)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["rmse", "r2"])  # the smaller, and the larger is better
def test_good_candidate_is_best(data, tmp_path, metric):
    candidates = [Crippled(5.0, "y"), good(), Crippled(-3.0, "y")]
    model = best_of(candidates, evaluator=RegressionEvaluator(labelCol="y", metricName=metric)).fit(data)
    assert model.bestIndex == 1
    assert [row["best"] for row in model.history] == [False, True, False]
    expected = np.linalg.lstsq(np.c_[X, np.ones(ROWS)], Y, rcond=None)[0]
    np.testing.assert_allclose(model.bestModel.coefficients.toArray(), expected[:3])
    predicted = np.c_[X, np.ones(ROWS)] @ expected
    np.testing.assert_allclose(model.predict({"features": X})["prediction"], predicted)
    assert model.evaluate(data).rmse == pytest.approx(np.sqrt(np.mean((Y - predicted) ** 2)))
    assert (model.summary.best_epoch, model.summary.metrics["metric"]) == (1, model.avgMetrics[1])
    PipelineModel([model]).save(str(tmp_path / "model"))
    (again,) = PipelineModel.load(str(tmp_path / "model")).stages
    names = ("uid", "bestIndex", "avgMetrics", "foldMetrics", "history")
    assert [getattr(again, name) for name in names] == [getattr(model, name) for name in names]
    assert again.transform(data).collect() == model.transform(data).collect()


@pytest.mark.slow
def test_metrics_are_of_unseen_rows(data):
    memoriser, constant = Memoriser("y"), Crippled(0.0, "y")
    model = best_of([memoriser, constant], numFolds=3, seed=5).fit(data)
    fold = np.floor(uniform(ARRAYS["row"], 5) * 3)
    expected = [np.sqrt(np.mean(Y[fold == k] ** 2)) for k in range(3)]  # the memoriser predicts 0 for unseen rows
    np.testing.assert_allclose(model.foldMetrics, [expected, expected])
    np.testing.assert_allclose(model.avgMetrics, 2 * [np.mean(expected)])
    assert model.bestIndex == 0  # the first of equals
    assert model.bestModel.labels == dict(enumerate(Y))  # the best is trained on all rows
    assert [row["metric"] for row in model.history] == model.avgMetrics
    assert model.report["trained"] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_candidates_of_any_library_with_their_own_labels(data):
    network = TorchRegressor(model=nets.column, inputCols=["x"], labelCol="y", batchSize=20, epochs=1)
    assembled = Pipeline(stages=[VectorAssembler(inputCols=["features"], outputCol="z"), good().setFeaturesCol("z")])
    model = best_of([network, assembled], parallelism=2).fit(data)
    assert (model.bestIndex, type(model.bestModel)) == (1, PipelineModel)
    assert model.transform(data).columns == [*data.columns, "z", "prediction"]
    indexed = StringIndexer(inputCol="word", outputCol="made", stringOrderType="alphabetAsc")
    words = data.withColumn("word", F.when(F.col("label") > 0, "b").otherwise("a"))
    candidates = [Pipeline(stages=[indexed, LinearRegression(labelCol="made")]) for _ in range(2)]
    model = best_of(candidates, evaluator=RegressionEvaluator(labelCol="made")).fit(words)
    assert 0 < model.avgMetrics[0] < 0.5


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_thread_that_exits_ends_the_fit(data, parallelism, monkeypatch):
    monkeypatch.setattr(RegressionEvaluator, "evaluate", Mock(side_effect=SystemExit(3)))
    with pytest.raises(SystemExit):
        best_of([Crippled(1.0, "y")], parallelism=parallelism).fit(data)


def test_request_to_stop_ends_the_evaluations(data, monkeypatch):
    evaluate = Mock(side_effect=lambda scored: request_stop("the test says so") or 1.0)
    monkeypatch.setattr(RegressionEvaluator, "evaluate", evaluate)
    try:
        with pytest.raises(Stopped, match=r"\(the test says so\) and had not evaluated all candidates"):
            best_of([Crippled(1.0, "y"), Crippled(2.0, "y")]).fit(data)
    finally:
        forget_stop()
    assert evaluate.call_count == 1


def chosen(means: list[float], larger: bool) -> int:
    return _best([Crippled(float(index)) for index in range(len(means))], means, larger)


def test_best_metric(spark):
    for means, larger, smaller in (
        ([1.0, 2.0, 0.5], 1, 2),
        ([1.0, 1.0], 0, 0),
        ([-1.0, -2.0, -1.0], 0, 1),
        ([0.0, np.inf, -np.inf], 1, 2),
    ):
        assert (chosen(means, True), chosen(means, False)) == (larger, smaller)
    for larger in (True, False):
        with pytest.warns(UserWarning, match=r"NaN, which loses to every number, for candidate 0 \(Crippled_\w+\)"):
            assert chosen([np.nan, 3.0], larger) == 1
    with pytest.raises(InvalidInput, match=r"the metric of every candidate is NaN: 0 \(Crippled_\w+\), 1"):
        chosen([np.nan, np.nan], True)


ONE = r"the candidate LinearRegression_\w+"


def judged(label: str = "y", kind: Any = RegressionEvaluator, **given: Any) -> Any:
    return lambda: {"evaluator": kind(labelCol=label, **given)}


INVALID: list[tuple[Any, str]] = [
    (lambda: {"candidates": []}, r"candidates is \[\]; expected at least one estimator"),
    (lambda: {"evaluator": None}, "evaluator is not set; expected one of pyspark.ml.evaluation"),
    (judged("z"), "labelCol of the evaluator is 'z'; the data has"),
    (judged("label"), rf"labelCol of {ONE} is 'y', but the evaluator has 'label'"),
    (judged(predictionCol="p"), rf"evaluator is 'p', which {ONE} does not write; it writes 'prediction'"),
    (judged(kind=BinaryClassificationEvaluator), rf"rawPredictionCol of the evaluator is 'rawPrediction', which {ONE}"),
    (lambda: {"numFolds": ROWS + 1}, f"there are {ROWS} rows for numFolds={ROWS + 1}"),
    (lambda: {"candidates": good()}, "expected a list of pyspark"),
    (lambda: {"candidates": [3]}, r"candidates is \[3\]; expected a list of pyspark"),
    (lambda: {"evaluator": "rmse"}, "evaluator is 'rmse'; expected"),
]


@pytest.mark.parametrize(("make", "message"), INVALID)
def test_invalid_settings_raise_before_training(data, make, message, monkeypatch):
    monkeypatch.setattr("sparkdl.ensembles.best_of.fit_members", lambda *_: pytest.fail("a member was trained"))
    with pytest.raises(InvalidInput, match=message):
        best_of(**{"candidates": [good()]} | make()).fit(data)
