"""The best of candidates: the planted one is found wherever it is, by metrics that are those of pyspark.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    Evaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import LinearRegression
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl import TorchRegressor
from sparkdl.cluster.shutdown import forget_stop, request_stop
from sparkdl.ensembles.best_of import BestOf, BestOfModel, _best
from sparkdl.ensembles.resampling.bootstrap import uniform
from sparkdl.errors import InvalidInput, SparkdlError, Stopped
from tests.ensembles.fakes import Crippled, Failing, Memoriser
from tests.ml import nets
from tests.sessions import frame

ROWS = 60
RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.25
ARRAYS = {"row": np.arange(ROWS), "x": X, "y": Y, "label": (Y > 0).astype(np.float64)}


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).withColumn("features", array_to_vector("x")).cache()


def good() -> LinearRegression:
    return LinearRegression(labelCol="y")


def best_of(candidates: list[Any], **given: Any) -> BestOf:
    evaluator = RegressionEvaluator(labelCol="y", metricName="rmse")
    return BestOf(**{"candidates": candidates, "evaluator": evaluator, "numFolds": 2, "idCol": "row"} | given)


@pytest.mark.parametrize("metric", ["rmse", "r2"])  # of which less is better, and more
@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_good_candidate_is_found_wherever_it_is(data, place, metric):
    candidates: list[Any] = [Crippled(5.0, "y"), Crippled(-3.0, "y")]
    candidates.insert(place, good())
    model = best_of(candidates, evaluator=RegressionEvaluator(labelCol="y", metricName=metric)).fit(data)
    assert model.bestIndex == place
    assert [row["best"] for row in model.history] == [index == place for index in range(3)]
    np.testing.assert_allclose(model.bestModel.coefficients.toArray(), [1.0, -2.0, 0.5])


@pytest.mark.slow
def test_metrics_are_those_of_rows_that_were_not_seen(data):
    memoriser, constant = Memoriser("y"), Crippled(0.0, "y")
    model = best_of([memoriser, constant], numFolds=3, seed=5).fit(data)
    fold = np.floor(uniform(ARRAYS["row"], 5) * 3)
    expected = [np.sqrt(np.mean(Y[fold == k] ** 2)) for k in range(3)]  # 0 of all rows, as nothing is known of them
    np.testing.assert_allclose(model.foldMetrics, [expected, expected])
    np.testing.assert_allclose(model.avgMetrics, 2 * [np.mean(expected)])
    assert model.bestIndex == 0  # the first of equals
    assert model.bestModel.labels == dict(enumerate(Y))  # the best is trained on all rows
    assert [row["metric"] for row in model.history] == model.avgMetrics
    assert model.report["trained"] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_candidates_of_several_libraries_are_judged_in_parallel(data):
    network = TorchRegressor(model=nets.column, inputCols=["x"], labelCol="y", batchSize=20)
    assembled = Pipeline(stages=[VectorAssembler(inputCols=["features"], outputCol="z"), good().setFeaturesCol("z")])
    model = best_of([network, assembled], parallelism=2).fit(data)
    assert model.bestIndex == 1
    assert isinstance(model.bestModel, PipelineModel)
    assert model.transform(data).columns == [*data.columns, "z", "prediction"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_thread_that_ends_the_process_is_not_waited_for(data, parallelism):
    class Leaves(RegressionEvaluator):
        def _evaluate(self, dataset: DataFrame) -> float:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        best_of([Crippled(1.0, "y")], evaluator=Leaves(labelCol="y"), parallelism=parallelism).fit(data)


def test_a_request_to_stop_ends_the_evaluations(data):
    asked = []

    class Stops(RegressionEvaluator):
        def _evaluate(self, dataset: DataFrame) -> float:
            asked.append(1)
            request_stop("the test says so")
            return 1.0

    try:
        with pytest.raises(Stopped, match=r"\(the test says so\) and had not judged all candidates"):
            best_of([Crippled(1.0, "y"), Crippled(2.0, "y")], evaluator=Stops(labelCol="y")).fit(data)
    finally:
        forget_stop()
    assert len(asked) == 1


@pytest.mark.slow
def test_pipelines_may_make_their_own_labels(data):
    indexed = StringIndexer(inputCol="word", outputCol="made", stringOrderType="alphabetAsc")
    candidates = [Pipeline(stages=[indexed, LinearRegression(labelCol="made")]) for _ in range(2)]
    words = data.withColumn("word", F.when(F.col("label") > 0, "b").otherwise("a"))
    model = best_of(candidates, evaluator=RegressionEvaluator(labelCol="made")).fit(words)
    assert "made" in model.transform(words).columns
    assert 0 < model.avgMetrics[0] < 0.5


# ---- which metric is the best ---------------------------------------------------------------------------------------


def chosen(means: list[float], larger: bool) -> int:
    return _best([Crippled(float(index)) for index in range(len(means))], means, larger)


@pytest.mark.parametrize(
    ("means", "larger", "smaller"),
    [
        ([1.0, 2.0, 0.5], 1, 2),
        ([1.0, 1.0], 0, 0),
        ([-1.0, -2.0, -1.0], 0, 1),
        ([0.0, np.inf, -np.inf], 1, 2),
        ([7.0], 0, 0),
    ],
)
def test_the_largest_or_the_smallest(spark, means, larger, smaller):
    assert (chosen(means, True), chosen(means, False)) == (larger, smaller)


@pytest.mark.parametrize("larger", [True, False])
def test_what_is_no_number_loses_with_a_warning(spark, larger):
    with pytest.warns(UserWarning, match=r"the metric is NaN, and so the worst, of candidate 0 \(Crippled_\w+\)"):
        assert chosen([np.nan, 3.0], larger) == 1


def test_no_number_at_all_is_refused(spark):
    with pytest.raises(InvalidInput, match=r"the metric of every candidate is NaN: 0 \(Crippled_\w+\), 1"):
        chosen([np.nan, np.nan], True)


class Nan(RegressionEvaluator):
    """Finds no number where the predictions are all 5."""

    def _evaluate(self, dataset: DataFrame) -> float:
        constant = dataset.where(F.col("prediction") != 5.0).isEmpty()
        return float("nan") if constant else super()._evaluate(dataset)


def test_a_candidate_whose_metric_is_no_number_is_not_chosen(data):
    with pytest.warns(UserWarning, match="the metric is NaN"):
        model = best_of([Crippled(5.0, "y"), Crippled(90.0, "y")], evaluator=Nan(labelCol="y")).fit(data)
    assert model.bestIndex == 1
    assert np.isnan(model.avgMetrics[0])


# ---- with pyspark.ml ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_searched_in_a_pipeline(data):
    base = good()
    stage = best_of([Crippled(3.0, "y"), base])
    grid = ParamGridBuilder().addGrid(base.regParam, [0.0, 1000.0]).build()
    search = CrossValidator(
        estimator=Pipeline(stages=[stage]),
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
        seed=1,
    )
    found = search.fit(data)
    assert found.avgMetrics[0] < found.avgMetrics[1]
    assert found.bestModel.stages[0].bestIndex == 1


def test_a_copy_has_candidates_and_an_evaluator_of_its_own(spark):
    estimator = best_of([good(), Crippled(1.0, "y")])
    first, evaluator = estimator.getCandidates()[0], estimator.getEvaluator()
    copied = estimator.copy({first.regParam: 4.0, evaluator.metricName: "r2", estimator.seed: 9})
    assert (copied.getCandidates()[0].getRegParam(), copied.getEvaluator().getMetricName()) == (4.0, "r2")
    assert (first.getRegParam(), evaluator.getMetricName(), estimator.getSeed()) == (0.0, "rmse", 0)
    assert (copied.uid, copied.getSeed(), len(copied.getCandidates())) == (estimator.uid, 9, 2)


def test_params_are_explained_and_set(spark):
    estimator = BestOf(numFolds=3).setCandidates([good()]).setEvaluator(RegressionEvaluator()).setNumFolds(4)
    assert [line.partition(":")[0] for line in estimator.explainParams().splitlines()] == [
        *("candidates", "disagreementCol", "evaluator", "idCol", "numFolds", "parallelism", "runDir", "seed")
    ]
    assert (estimator.getNumFolds(), len(estimator.getCandidates())) == (4, 1)


@pytest.mark.slow
def test_models_and_estimators_are_saved(data, tmp_path):
    estimator = best_of([LinearRegression(labelCol="y", regParam=5.0), good()], seed=3)
    model = estimator.fit(data)
    estimator.save(str(tmp_path / "estimator"))
    loaded = BestOf.load(str(tmp_path / "estimator"))
    assert [each.uid for each in loaded.getCandidates()] == [each.uid for each in estimator.getCandidates()]
    assert loaded.getEvaluator().getMetricName() == "rmse"
    assert (loaded.uid, loaded.getNumFolds(), loaded.getIdCol(), loaded.getSeed()) == (estimator.uid, 2, "row", 3)
    Pipeline(stages=[estimator]).fit(data).save(str(tmp_path / "model"))
    (again,) = PipelineModel.load(str(tmp_path / "model")).stages
    assert isinstance(again, BestOfModel)
    names = ("uid", "bestIndex", "avgMetrics", "foldMetrics", "history")
    assert [getattr(again, name) for name in names] == [getattr(model, name) for name in names]
    assert again.transform(data).collect() == model.transform(data).collect()


@pytest.mark.slow
def test_what_failed_is_trained_again_and_nothing_else(data, tmp_path):
    class Mended(Failing):
        """It fails until it is mended, and is known by the same Params."""

        broken = True

        def _fit(self, dataset: DataFrame) -> Any:
            return super()._fit(dataset) if self.broken else LinearRegression(labelCol="y").fit(dataset)

    def ensemble() -> BestOf:
        return best_of([LinearRegression(labelCol="y", regParam=1.0), Mended(1.0, "y")], runDir=str(tmp_path / "run"))

    with pytest.raises(SparkdlError, match="member 3"):
        ensemble().fit(data)
    Mended.broken = False
    model = ensemble().fit(data)
    assert (model.bestIndex, model.report["trained"], model.report["restored"]) == (1, [3, 4, 5], [0, 1])
    again = ensemble().fit(data)
    assert (again.report["trained"], again.report["restored"]) == ([], [0, 1, 3, 4, 5])
    assert again.avgMetrics == model.avgMetrics


# ---- what is refused ------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, str]] = {
    "no candidates": (lambda: {"candidates": []}, r"candidates is \[\]; expected one estimator at least"),
    "no evaluator": (lambda: {"evaluator": None}, "evaluator is not set; expected one of pyspark.ml.evaluation"),
    "label of the evaluator": (
        lambda: {"evaluator": RegressionEvaluator(labelCol="z")},
        "labelCol of the evaluator is 'z', which is no column; the data has",
    ),
    "another label": (
        lambda: {"evaluator": RegressionEvaluator(labelCol="label")},
        r"labelCol of the candidate LinearRegression_\w+ is 'y' and that of the evaluator 'label'",
    ),
    "another prediction": (
        lambda: {"evaluator": RegressionEvaluator(labelCol="y", predictionCol="p")},
        r"evaluator is 'p', which the candidate LinearRegression_\w+ does not write; it writes 'prediction'",
    ),
    "no scores": (
        lambda: {"evaluator": BinaryClassificationEvaluator(labelCol="y")},
        "rawPredictionCol of the evaluator is 'rawPrediction', which the candidate",
    ),
    "too many folds": (lambda: {"numFolds": ROWS + 1}, f"there are {ROWS} rows for numFolds={ROWS + 1}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_before_anything_is_trained(data, name, monkeypatch):
    monkeypatch.setattr("sparkdl.ensembles.best_of.fit_members", lambda *_: pytest.fail("it was trained"))
    given, message = REFUSED[name]
    with pytest.raises(InvalidInput, match=message):
        best_of(**{"candidates": [good()]} | given()).fit(data)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"candidates": [3]}, r"candidates is \[3\]; expected a list of pyspark"),
        ({"evaluator": "rmse"}, "evaluator is 'rmse'; expected one of pyspark"),
    ],
)
def test_what_is_refused_when_it_is_given(spark, given, message):
    with pytest.raises(InvalidInput, match=message):
        BestOf(**given)
    with pytest.raises(InvalidInput, match="expected a list of pyspark"):
        BestOf(candidates=good())


@pytest.mark.slow
def test_a_classifier_is_judged_by_its_probabilities(data):
    evaluator: Evaluator = MulticlassClassificationEvaluator(metricName="logLoss")
    assert not evaluator.isLargerBetter()
    candidates = [LogisticRegression(regParam=strength) for strength in (10.0, 0.01)]
    assert best_of(candidates, evaluator=evaluator).fit(data).bestIndex == 1
