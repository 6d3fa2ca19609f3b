"""Stacking: out-of-fold predictions of any bases, equal to NumPy, for any meta estimator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC, LogisticRegression, NaiveBayes
from pyspark.ml.feature import SQLTransformer, StandardScaler, VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sklearn import linear_model
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import StackingRegressor
from sklearn.model_selection import PredefinedSplit
from sklearn.pipeline import make_pipeline

from sparkdl import InvalidInput, TorchClassifier, TorchEstimator, TorchRegressor
from sparkdl.ensembles.folds import Folds
from sparkdl.ensembles.meta_features import LEVEL_ONE, MetaFeatureAssembler
from sparkdl.ensembles.resampling.bootstrap import uniform
from sparkdl.ensembles.stacking import Stacking, StackingModel, level_one
from sparkdl.spark.columns import ROW_ID
from tests.ensembles.fakes import ARRAYS, ROWS, Crippled, KnownClasses, Memoriser, X, Y, member, outputs
from tests.ml import nets

COLUMNS = [*ARRAYS, "features", "some"]
LINE = partial(LinearRegression, labelCol="y")
stump = partial(DecisionTreeClassifier, maxDepth=1)


def network(kind: type = TorchClassifier, **given: Any) -> Any:
    settings = {"model": nets.scores, "optimizer": partial(torch.optim.SGD, lr=0.5), "inputCols": ["x"], "epochs": 3}
    return kind(**settings | {"labelCol": "several", "batchSize": 32} | given)


def linear(**given: Any) -> Stacking:
    bases = [LINE(), LINE(featuresCol="some")]
    return Stacking(**{"bases": bases, "meta": LINE(), "numFolds": 2, "idCol": "row"} | given)


def fold_of(count: int, seed: int) -> np.ndarray:
    return np.floor(uniform(ARRAYS["row"], seed) * count)


def vectors(level: DataFrame) -> np.ndarray:
    """The meta features in the order of the rows."""
    collected = level.select("row", vector_to_array(LEVEL_ONE)).collect()
    return np.array([numbers for _, numbers in sorted(collected)])


def stacked(data: DataFrame, bases: list[Any], count: int = 4, **given: Any) -> tuple[StackingModel, np.ndarray]:
    """A stacking, and the training features of its meta model."""
    kept: dict[str, Any] = {}

    class Watched(LogisticRegression):
        def _fit(self, dataset: DataFrame) -> Any:
            kept["z"] = vectors(dataset)
            return super()._fit(dataset)

    model = Stacking(bases=bases, meta=Watched(regParam=0.01), numFolds=count, idCol="row", **given).fit(data)
    return model, kept["z"]


# ---- out-of-fold predictions -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memorised_labels_do_not_reach_meta(data):
    model, z = stacked(data, [Memoriser("coin", KnownClasses), Memoriser("coin")], 3, seed=2)
    np.testing.assert_array_equal(z, np.tile([0.5, 0.5, 0.0], (ROWS, 1)))
    assert [sorted(base.labels) for base in model.models] == 2 * [list(range(ROWS))]  # they train on all rows
    assert [row["fold"] for row in model.history] == [0, 1, 2, None, 0, 1, 2, None, None]
    assert [row["base"] for row in model.history] == [0, 0, 0, 0, 1, 1, 1, 1, None]


@pytest.mark.slow
@pytest.mark.parametrize("passthrough", [False, True])
def test_linear_stacking_equals_scikit_learn(data, passthrough):
    line = linear_model.LinearRegression()
    bases = [("all", line), ("some", make_pipeline(ColumnTransformer([("some", "passthrough", [0, 1])]), line))]
    expected = StackingRegressor(bases, line, cv=PredefinedSplit(fold_of(4, 6)), passthrough=passthrough).fit(X, Y)
    model = linear(meta=None, numFolds=4, seed=6, passthrough=passthrough, parallelism=2).fit(data)
    np.testing.assert_allclose(outputs(model, data, "prediction")[0], expected.predict(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.predict(data.toPandas())["prediction"], expected.predict(X), rtol=1e-6, atol=1e-6)
    assert model.evaluate(data).r2 == pytest.approx(expected.score(X, Y))
    assert model.summary.rows == ROWS


@pytest.mark.slow
def test_meta_features_are_probabilities_scores_or_classes(data):
    folds, fold = Folds(2, 4), fold_of(2, 4)
    parts = [data.where(F.col("row").isin(np.flatnonzero(fold != k).tolist())) for k in (0, 1)]
    bases = [stump(labelCol="several"), LinearSVC(labelCol="coin", maxIter=1), Crippled(1.0, "coin")]
    models = [base.fit(part) for base in bases for part in (*parts, parts[0])]
    expected = []
    for base, name in enumerate(("probability", "rawPrediction")):
        by_fold = [outputs(models[folds.index(base, k)], data, name)[0] for k in range(2)]
        expected.append(np.where(fold[:, None] == 0, *by_fold))
    features = vectors(level_one(data.withColumn(ROW_ID, F.col("row")), folds, models, MetaFeatureAssembler(3)))
    zeros = np.zeros((ROWS, 1))  # for the class that the second base does not know
    np.testing.assert_allclose(features, np.hstack([*expected, zeros, zeros + 1]), rtol=1e-12)


@pytest.mark.slow
def test_class_missing_in_a_fold_has_probability_0(data):
    # All rows of class 2 are in fold 0, whose member knows two classes; all others know three.
    rare = np.where(fold_of(3, 1) == 0, np.arange(ROWS) % 3, np.arange(ROWS) % 2).astype(np.float64)
    some = data.withColumn("rare", F.element_at(F.lit(rare.tolist()), F.col("row").cast("int") + 1))
    model, z = stacked(some, [NaiveBayes(labelCol="rare", modelType="gaussian")], 3, seed=1)
    assert z.shape == (ROWS, 3)
    assert (z[fold_of(3, 1) == 0, 2] == 0).all()
    assert (z[fold_of(3, 1) != 0, 2] > 0).all()
    np.testing.assert_allclose(z.sum(1), 1)
    assert model.meta.numClasses == 3
    assert model.transform(some).count() == ROWS


@pytest.mark.slow
def test_arrays_and_passthrough_are_concatenated(data):
    made, arrays = member(nets.column, "estimator", output=[1]), member(nets.scores, "estimator")
    # The last stage that predicts counts, here before one that drops a column.
    last = SQLTransformer(statement="SELECT * EXCEPT (scaled) FROM __THIS__")
    scaler = StandardScaler(inputCol="features", outputCol="scaled").fit(data)
    line = LINE(featuresCol="scaled").fit(scaler.transform(data))
    models = [made, arrays, PipelineModel([scaler, line, last]), PipelineModel([scaler, line])]
    z = vectors(MetaFeatureAssembler(passthrough=("x", "y")).of(data, models))
    assert z.shape == (ROWS, 1 + 3 + 1 + 1 + 3 + 1)
    np.testing.assert_array_equal(z[:, 4], z[:, 5])
    np.testing.assert_array_equal(z[:, 6:9], X)
    np.testing.assert_array_equal(z[:, 9], ARRAYS["y"])
    with pytest.raises(InvalidInput, match=rf"the model {scaler.uid} of base 0 writes none of probabilityCol"):
        MetaFeatureAssembler().of(data, [scaler])


# ---- any bases, any meta ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_networks_and_pipelines_are_bases_and_meta(data):
    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    tree = DecisionTreeClassifier(labelCol="several", featuresCol="scaled", maxDepth=2)
    model, z = stacked(data, [network(), Pipeline(stages=[scaler, tree])], 2, seed=5)
    assert z.shape == (ROWS, 6)
    np.testing.assert_allclose(z[:, :3].sum(1), 1, rtol=1e-6)
    scored = model.transform(data)
    assert scored.columns == [*COLUMNS, "rawPrediction", "probability", "prediction"]
    assert scored.where("prediction = several").count() > 0.8 * ROWS
    meta = TorchRegressor(model=partial(nets.mlp, 2, outputs=1), inputCols=["elsewhere"], epochs=2)
    bases = [LINE(predictionCol="p"), DecisionTreeRegressor(labelCol="y", maxDepth=2, predictionCol="p")]
    model = Stacking(bases=bases, meta=meta, numFolds=2, idCol="row").fit(data)
    assert (model.meta.getInputCols(), meta.getInputCols()) == ([LEVEL_ONE], ["elsewhere"])
    assert model.transform(data).columns == [*COLUMNS, "prediction"]
    stages = [StandardScaler(inputCol="any", outputCol="scaled"), LinearRegression(featuresCol="scaled")]
    other = data.withColumn("prediction", F.lit("mine"))
    last = stages[1].copy({stages[1].predictionCol: "p"})
    model = Stacking(bases=bases[:1], meta=Pipeline(stages=[stages[0], last]), numFolds=2).fit(other)
    assert model.transform(other).columns == [*COLUMNS, "prediction", "scaled", "p"]
    assert (stages[0].getInputCol(), model.report["rows"]) == ("any", ROWS)


@pytest.mark.slow
def test_one_pass_over_the_rows(data, tmp_path):
    data.select("row", "x", "y").write.parquet(str(tmp_path / "rows"))
    rows = data.sparkSession.read.parquet(str(tmp_path / "rows")).withColumn("features", array_to_vector("x"))
    bases = [LINE(), network(TorchRegressor, model=nets.column, labelCol="y")]
    model = Stacking(bases=bases, numFolds=2, idCol="row").fit(rows)
    plan = model.transform(rows)._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan") == 1


# ---- with pyspark.ml -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_maps_do_not_change_the_input_of_meta(data):
    level, lines = MetaFeatureAssembler(), [LINE().fit(data)]
    z = level.of(data, lines).withColumnRenamed(LEVEL_ONE, "z")
    meta: Any = LINE(featuresCol="z").fit(z)
    model: Any = StackingModel(lines, meta.setFeaturesCol(LEVEL_ONE), level)
    expected = model.transform(data).collect()
    assert model.transform(data, {meta.featuresCol: "features"}).collect() == expected
    assert model.transform(data, {meta.predictionCol: "q"}).columns[-1] == "q"
    scaler = StandardScaler(inputCol="z", outputCol="scaled").fit(z).setInputCol(LEVEL_ONE)
    piped: Any = StackingModel(lines, PipelineModel([scaler, meta]), level)
    copied = piped.copy({scaler.inputCol: "features", scaler.outputCol: "s", meta.featuresCol: "s"})
    first, second = copied.meta.stages
    assert (first.getInputCol(), first.getOutputCol(), second.getFeaturesCol()) == (LEVEL_ONE, "s", "s")
    torch_meta = member(kind="regressor").setFeaturesCol(LEVEL_ONE)
    copied = StackingModel([], torch_meta).copy({torch_meta.inputCols: ["x", "y"], torch_meta.predictionCol: "q"})
    assert (copied.meta.getInputCols(), copied.meta.getPredictionCol()) == ([LEVEL_ONE], "q")


@pytest.mark.slow
def test_fits_repeat_restore_and_are_saved(data, tmp_path):
    bases = [DecisionTreeRegressor(labelCol="y", maxDepth=2)]
    stacking = linear(bases=bases, passthrough=True, runDir=str(tmp_path / "run"))
    model, again = stacking.fit(data), stacking.fit(data)
    assert (model.report["trained"], again.report["restored"]) == (list(range(4)), list(range(4)))
    assert (model.uid, len(model.models)) == (stacking.uid, 1)
    with pytest.raises(InvalidInput, match="numFolds"):
        stacking.copy().setNumFolds(3).fit(data)
    features = [MetaFeatureAssembler().of(data, each.models).select(LEVEL_ONE).collect() for each in (model, again)]
    assert features[0] == features[1]
    stacking.save(str(tmp_path / "estimator"))
    loaded = Stacking.load(str(tmp_path / "estimator"))
    assert [each.uid for each in loaded.base_estimators()] == [each.uid for each in stacking.base_estimators()]
    assert (loaded.getMeta().uid, loaded.getPassthrough(), loaded.getNumFolds()) == (stacking.getMeta().uid, True, 2)
    PipelineModel([model]).save(str(tmp_path / "model"))
    (again,) = PipelineModel.load(str(tmp_path / "model")).stages
    assert isinstance(again, StackingModel)
    names = ("uid", "level", "history", "report")
    assert [getattr(again, name) for name in names] == [getattr(model, name) for name in names]
    assert again.transform(data).collect() == model.transform(data).collect()


SQUARES = partial(network, TorchEstimator, loss=torch.nn.MSELoss())
SCALER = partial(StandardScaler, inputCol="x")

INVALID: list[tuple[Any, str]] = [
    (lambda: {"bases": []}, r"bases is \[\]; expected at least one estimator"),
    (lambda: {"bases": LINE()}, "expected a list of pyspark"),
    (lambda: {"bases": [3]}, r"bases is \[3\]; expected a list of pyspark.ml Estimators"),
    (lambda: {"bases": [], "meta": "best"}, "meta is 'best'; expected a pyspark.ml Estimator"),
    (
        lambda: {"bases": [LINE(), LogisticRegression(labelCol="y")]},
        r"bases are of several kinds: LinearRegression_\w+ is a regressor, LogisticRegression_\w+ is a classifier",
    ),
    (
        lambda: {"bases": [LINE(), LinearRegression(labelCol="coin")]},
        r"different label columns: \['y', 'coin'\]; expected one labelCol",
    ),
    (lambda: {"bases": [LinearRegression(labelCol="gone")]}, "labelCol of the bases is 'gone'; the data has"),
    (
        lambda: {"bases": [SQUARES(labelCol=None)]},
        r"labelCol of TorchEstimator_\w+ is None; expected the labels that meta learns from",
    ),
    (
        lambda: {"bases": [SQUARES(labelCol=["y", "coin"])]},
        r"labelCol is \['y', 'coin'\]; several labels expect a PyTorch estimator",
    ),
    (
        lambda: {"bases": [SQUARES(labelCol=["y", "coin"])], "meta": LinearRegression()},
        r"meta is LinearRegression_\w+, which reads one label",
    ),
    (lambda: {"numFolds": 1}, "numFolds is 1; expected a whole number of at least 2"),
    (lambda: {"bases": [SCALER()]}, "StandardScaler, which has no predictionCol"),
    (
        lambda: {"bases": [LINE()], "meta": LinearRegression(labelCol="coin")},
        "labelCol of meta is 'coin', but the bases have 'y'; expected the same",
    ),
    (lambda: {"bases": [LINE()], "meta": SCALER()}, r"meta is StandardScaler_\w+, which has no labelCol"),
    (
        lambda: {"bases": [LINE()], "meta": Pipeline(stages=[VectorAssembler(inputCols=["x"]), LINE()])},
        r"meta begins with VectorAssembler_\w+, which has no featuresCol and no inputCol",
    ),
    (
        lambda: {"bases": [Pipeline(stages=[SCALER(outputCol="s"), LINE(featuresCol="s")])], "passthrough": True},
        r"passthrough=True, but the features \['s'\] of Pipeline_\w+ are no columns",
    ),
]


@pytest.mark.parametrize(("make", "message"), INVALID)
def test_invalid_settings_raise_before_training(data, make, message, monkeypatch):
    monkeypatch.setattr("sparkdl.ensembles.stacking.fit_members", lambda *_: pytest.fail("a member was trained"))
    with pytest.raises(InvalidInput, match=message):
        Stacking(**{"idCol": "row"} | make()).fit(data)
