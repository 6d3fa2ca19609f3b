"""Stacking: what it learns from has not been seen, is what NumPy computes, whichever the bases are."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC, LogisticRegression
from pyspark.ml.feature import SQLTransformer, StandardScaler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl import TorchEstimator, TorchRegressor
from sparkdl.ensembles import folds as folds_module
from sparkdl.ensembles.folds import Folds
from sparkdl.ensembles.members.member import Rows
from sparkdl.ensembles.meta_features import LEVEL_ONE, LevelOne
from sparkdl.ensembles.resampling.bootstrap import AllRows, uniform
from sparkdl.ensembles.stacking import Stacking, StackingModel, level_one
from tests.ensembles.fakes import ClassMemoriser, Crippled, Known, Memoriser
from tests.ensembles.stacked_rows import ARRAYS, COLUMNS, ROWS, X, torch_base
from tests.ml import nets
from tests.rounds.data import adult
from tests.sessions import frame


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).withColumn("features", array_to_vector("x")).cache()


def fold_of(count: int, seed: int) -> np.ndarray:
    return np.floor(uniform(ARRAYS["row"], seed) * count)


def vectors(level: DataFrame) -> np.ndarray:
    """The level-one features in the order of the rows."""
    found = level.select("row", vector_to_array(LEVEL_ONE).alias("z")).toPandas().sort_values("row")
    return np.stack(found["z"].to_numpy())


# ---- nothing is seen before it is predicted -------------------------------------------------------------------------


def stacked(data: DataFrame, bases: list[Any], count: int = 4, **given: Any) -> tuple[StackingModel, np.ndarray]:
    """A stacking, and the features that its meta model was trained on."""
    kept: dict[str, Any] = {}

    class Watched(LogisticRegression):
        def _fit(self, dataset: DataFrame) -> Any:
            kept["z"] = vectors(dataset)
            return super()._fit(dataset)

    meta = given.pop("meta", None) or Watched(regParam=0.01)
    model = Stacking(bases=bases, meta=meta, numFolds=count, idCol="row", **given).fit(data)
    return model, kept["z"]


@pytest.mark.slow
def test_a_base_that_memorises_rows_gains_nothing(data):
    _, z = stacked(data, [ClassMemoriser("coin")])
    assert (z == 0.5).all()  # it knows nothing of any row


@pytest.fixture
def leaking(monkeypatch):
    """Members of folds that are given all rows."""
    monkeypatch.setattr(folds_module.Folds, "without", lambda self, fold: AllRows())


def accuracy(model: Any, data: DataFrame, label: str) -> float:
    return model.transform(data).agg(F.avg((F.col("prediction") == F.col(label)).cast("double"))).first()[0]


def learned(data: DataFrame) -> tuple[float, float]:
    """How far the features of level one tell coins, and how well meta does by them, beyond the majority's share."""
    _, z = stacked(data, [ClassMemoriser("coin")])
    coin = ARRAYS["coin"]
    spread = abs(z[coin == 1, 1].mean() - z[coin == 0, 1].mean())
    majority = max(coin.mean(), 1 - coin.mean())
    level = frame({"features": z, "coin": coin}).withColumn("features", array_to_vector("features"))
    meta = LogisticRegression(labelCol="coin", regParam=0.01).fit(level)
    return spread, accuracy(meta, level, "coin") - majority


@pytest.mark.slow
def test_what_is_learned_by_heart_is_not_told(data):
    assert learned(data) == pytest.approx((0.0, 0.0), abs=1e-9)


@pytest.mark.slow
def test_the_test_above_sees_a_leak(data, leaking):
    spread, gain = learned(data)
    assert spread == 1.0
    assert gain > 0.4


@pytest.mark.parametrize("count", [2, 5])
def test_each_row_is_predicted_once_by_a_member_that_was_not_given_it(data, count):
    rows, folds, bases = Rows(data, "row"), Folds(count, 9), [Memoriser("y", ones=True), Memoriser("coin", ones=True)]
    models: list[Any] = []
    for base in range(2):
        drawn = [folds.without(fold).counts(ARRAYS["row"]) for fold in range(count)] + [np.ones(ROWS)]
        models += [Known({int(i): 1.0 for i in np.flatnonzero(counts)}) for counts in drawn]
        assert all(len(model.labels) < ROWS for model in models[folds.index(base, 0) : folds.index(base)])
    level = level_one(rows, folds, models, LevelOne())
    assert sorted(row for (row,) in level.select("row").collect()) == list(range(ROWS))
    assert (vectors(level) == np.zeros((ROWS, 2))).all()
    assert len(bases) * (count + 1) == len(models)


@pytest.mark.slow
def test_members_are_trained_on_the_rows_that_their_draws_say(data):
    model, _ = stacked(data, [Memoriser("coin"), Memoriser("coin")], 3, seed=2)
    assert [sorted(base.labels) for base in model.models] == 2 * [list(range(ROWS))]
    assert [row["fold"] for row in model.history] == [0, 1, 2, None, 0, 1, 2, None, None]
    assert [row["base"] for row in model.history] == [0, 0, 0, 0, 1, 1, 1, 1, None]


# ---- it is what NumPy computes --------------------------------------------------------------------------------------


def least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]


def applied(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.c_[x, np.ones(len(x))] @ weights


@pytest.mark.parametrize("passthrough", [pytest.param(False, marks=pytest.mark.slow), True])
def test_linear_stacking_is_that_of_numpy(data, passthrough):
    x, y, fold = ARRAYS["x"], ARRAYS["y"], fold_of(4, 6)
    squares = data.withColumn("s", array_to_vector(F.transform("x", lambda each: each * each)))
    inputs = [x, x * x]
    z = np.zeros((ROWS, 2))
    for base, features in enumerate(inputs):
        for k in range(4):
            weights = least_squares(features[fold != k], y[fold != k])
            z[fold == k, base] = applied(weights, features[fold == k])
    whole = np.stack([applied(least_squares(each, y), each) for each in inputs], 1)
    more = [x] if passthrough else []
    expected = applied(least_squares(np.hstack([z, *more]), y), np.hstack([whole, *more]))

    bases = [LinearRegression(labelCol="y"), LinearRegression(labelCol="y", featuresCol="s")]
    stacking = Stacking(bases=bases, numFolds=4, seed=6, idCol="row", passthrough=passthrough, parallelism=2)
    found = stacking.fit(squares).transform(squares).toPandas().sort_values("row")
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_level_one_is_the_probabilities_of_members(data):
    bases = [LogisticRegression(labelCol="several", regParam=0.1), DecisionTreeClassifier(labelCol="several")]
    folds, rows = Folds(2, 4), Rows(data, "row")
    fold = fold_of(2, 4)
    models = [
        base.fit(data.where(F.col("row").isin(np.flatnonzero(fold != k).tolist()))) for base in bases for k in (0, 1, 0)
    ]
    expected = np.zeros((ROWS, 6))
    for base in range(2):
        for k in range(2):
            scored = models[folds.index(base, k)].transform(data).select("row", vector_to_array("probability"))
            z = np.array([each for _, each in sorted(scored.collect())])
            expected[fold == k, 3 * base : 3 * base + 3] = z[fold == k]
    np.testing.assert_allclose(vectors(level_one(rows, folds, models, LevelOne(3))), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_class_that_members_have_not_seen_has_a_probability_of_0(data):
    # All rows of class 2 are in fold 0, whose member knows two classes, and all others three.
    rare = np.where(fold_of(3, 1) == 0, np.arange(ROWS) % 3, np.arange(ROWS) % 2).astype(np.float64)
    some = data.withColumn("rare", F.element_at(F.lit(rare.tolist()), F.col("row").cast("int") + 1))
    model, z = stacked(some, [LogisticRegression(labelCol="rare", regParam=0.1)], 3, seed=1)
    assert z.shape == (ROWS, 3)
    assert (z[fold_of(3, 1) == 0, 2] == 0).all()
    assert (z[fold_of(3, 1) != 0, 2] > 0).all()
    np.testing.assert_allclose(z.sum(1), 1)
    assert model.meta.numClasses == 3
    assert model.transform(some).count() == ROWS


# ---- any bases, any meta --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pytorch_bases_go_with_those_of_pyspark(data):
    svm = Pipeline(
        stages=[
            StandardScaler(inputCol="features", outputCol="scaled"),
            DecisionTreeClassifier(labelCol="several", featuresCol="scaled", maxDepth=2),
        ]
    )
    model, z = stacked(data, [torch_base(), svm], 2, seed=5)
    assert z.shape == (ROWS, 6)
    np.testing.assert_allclose(z[:, :3].sum(1), 1, rtol=1e-6)
    assert accuracy(model, data, "several") > 0.8
    assert model.transform(data).columns == [*COLUMNS, "rawPrediction", "probability", "prediction"]


@pytest.mark.slow
def test_scores_and_classes_where_there_are_no_probabilities(data):
    bases = [LinearSVC(labelCol="coin", maxIter=2), Crippled(1.0, "coin")]
    folds, scores = Folds(2, 0), data.drop("coin").withColumn("coin", F.col("row") % 2)
    models = [base.fit(scores) for base in bases for _ in range(3)]
    z = vectors(level_one(Rows(scores, "row"), folds, models, LevelOne(2)))
    raw = np.array([each for _, each in sorted(models[0].transform(scores).select("row", "rawPrediction").collect())])
    np.testing.assert_allclose(z, np.c_[raw, np.ones(ROWS)])


def test_what_comes_after_a_prediction_in_a_pipeline(data):
    """The last stage that predicts counts, here before one that takes a column away."""
    last = SQLTransformer(statement="SELECT * EXCEPT (scaled) FROM __THIS__")
    scaler = StandardScaler(inputCol="features", outputCol="scaled").fit(data)
    line = LinearRegression(labelCol="y", featuresCol="scaled").fit(scaler.transform(data))
    z = vectors(LevelOne().of(data, [PipelineModel([scaler, line, last]), PipelineModel([scaler, line])]))
    assert z.shape == (ROWS, 2)
    np.testing.assert_array_equal(z[:, 0], z[:, 1])


@pytest.mark.slow
def test_arrays_of_numbers_are_features_side_by_side(data):
    base = torch_base(TorchEstimator, loss=torch.nn.CrossEntropyLoss(), labelCol="row")
    made = base.copy({base.labelCol: "y", base.loss: torch.nn.MSELoss(), base.model: nets.column}).fit(data)
    arrays = torch_base(TorchEstimator, loss=torch.nn.MSELoss(), labelCol="x", model=nets.scores).fit(data)
    z = vectors(LevelOne(passthrough=("x", "y")).of(data, [made, arrays, made]))
    assert z.shape == (ROWS, 1 + 3 + 1 + 3 + 1)
    np.testing.assert_array_equal(z[:, 0], z[:, 4])
    np.testing.assert_array_equal(z[:, 5:8], X)
    np.testing.assert_array_equal(z[:, 8], ARRAYS["y"])


@pytest.mark.slow
def test_a_pytorch_meta_reads_level_one(data):
    meta = TorchRegressor(model=partial(nets.mlp, 2, outputs=1), inputCols=["elsewhere"], epochs=2)
    bases = [LinearRegression(labelCol="y"), DecisionTreeRegressor(labelCol="y", maxDepth=2)]
    model = Stacking(bases=bases, meta=meta, numFolds=2, idCol="row").fit(data)
    assert (model.meta.getInputCols(), meta.getInputCols()) == ([LEVEL_ONE], ["elsewhere"])
    assert model.transform(data).columns == [*COLUMNS, "prediction"]


@pytest.mark.slow
def test_a_pipeline_is_a_meta_estimator(data):
    stages = [StandardScaler(inputCol="any", outputCol="scaled"), LinearRegression(featuresCol="scaled")]
    bases = [LinearRegression(labelCol="y")]
    model = Stacking(bases=bases, meta=Pipeline(stages=stages), numFolds=2, idCol="row").fit(data)
    assert model.transform(data).columns == [*COLUMNS, "scaled", "prediction"]
    assert stages[0].getInputCol() == "any"


@pytest.mark.slow
def test_bases_that_write_the_same_columns_and_rows_that_have_them(data):
    other = data.withColumn("prediction", F.lit("mine"))
    bases = [LinearRegression(labelCol="y", predictionCol="p"), LinearRegression(labelCol="y", predictionCol="p")]
    meta = LinearRegression(predictionCol="p", regParam=0.1)
    found = Stacking(bases=bases, meta=meta, numFolds=2, idCol="row").fit(other).transform(other)
    assert found.columns == [*COLUMNS, "prediction", "p"]
    assert {row.prediction for row in found.collect()} == {"mine"}


@pytest.mark.slow
def test_one_pass_over_the_rows(data, tmp_path):
    data.select("row", "x", "y").write.parquet(str(tmp_path / "rows"))
    rows = data.sparkSession.read.parquet(str(tmp_path / "rows")).withColumn("features", array_to_vector("x"))
    bases = [LinearRegression(labelCol="y"), torch_base(TorchRegressor, model=nets.column, labelCol="y")]
    model = Stacking(bases=bases, numFolds=2, idCol="row").fit(rows)
    plan = model.transform(rows)._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan") == 1


# ---- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_as_good_as_the_better_of_its_bases_on_adult(spark):
    frames = {
        name: frame({"row": np.arange(len(y)), "x": x, "label": y})
        .select("row", "label", array_to_vector("x").alias("features"))
        .repartition(2)
        .cache()
        for name, (x, y) in adult().items()
    }
    bases = [LogisticRegression(regParam=1e-4), DecisionTreeClassifier(maxDepth=8)]
    alone = [accuracy(base.fit(frames["train"]), frames["test"], "label") for base in bases]
    model = Stacking(bases=bases, numFolds=5, idCol="row", parallelism=2).fit(frames["train"])
    both = accuracy(model, frames["test"], "label")
    assert both > max(alone) - 0.002, f"{alone} alone, {both} stacked"
