"""Stacking as pyspark.ml has it: copies, pipelines and searches, what is kept and saved, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.regression import DecisionTreeRegressor, LinearRegression
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl import TorchEstimator, TorchRegressor
from sparkdl.ensembles.meta_features import LEVEL_ONE, LevelOne
from sparkdl.ensembles.stacking import Stacking, StackingModel
from sparkdl.errors import InvalidInput, SparkdlError
from tests.ensembles.fakes import Failing
from tests.ensembles.stacked_rows import ARRAYS, ROWS, torch_base
from tests.ensembles.voters import member
from tests.ml import nets
from tests.sessions import frame


@pytest.fixture(scope="module")
def data(spark):
    return frame(ARRAYS).withColumn("features", array_to_vector("x")).cache()


# ---- with pyspark.ml ------------------------------------------------------------------------------------------------


def linear(**given: Any) -> Stacking:
    bases = [LinearRegression(labelCol="y", regParam=0.01), LinearRegression(labelCol="y", featuresCol="some")]
    return Stacking(**{"bases": bases, "meta": LinearRegression(labelCol="y"), "numFolds": 2, "idCol": "row"} | given)


@pytest.fixture(scope="module")
def some(data):
    return data.withColumn("some", array_to_vector(F.slice("x", 1, 2)))


@pytest.mark.slow
def test_it_is_the_stage_of_a_pipeline_and_is_searched(some):
    stacking = linear(bases=[LinearRegression(labelCol="y", featuresCol="made")])
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["some"], outputCol="made"), stacking])
    [base], meta = stacking.getBases(), stacking.getMeta()
    grid = ParamGridBuilder().addGrid(base.regParam, [1000.0, 0.0]).addGrid(meta.regParam, [1000.0, 0.0]).build()
    evaluator = RegressionEvaluator(labelCol="y")
    search = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1)
    found = search.fit(some)
    assert found.avgMetrics[3] == min(found.avgMetrics)
    assert found.avgMetrics[0] > found.avgMetrics[3]
    assert found.bestModel.transform(some).columns[-2:] == ["made", "prediction"]


def test_a_copy_has_bases_of_its_own(spark):
    stacking = linear(passthrough=True)
    first, meta = stacking.getBases()[0], stacking.getMeta()
    copied = stacking.copy({first.regParam: 7.0, meta.regParam: 8.0, stacking.numFolds: 9})
    assert (copied.getBases()[0].getRegParam(), copied.getMeta().getRegParam(), copied.getNumFolds()) == (7.0, 8.0, 9)
    assert (first.getRegParam(), meta.getRegParam(), stacking.getNumFolds()) == (0.01, 0.0, 2)
    assert (copied.uid, copied.getPassthrough(), len(copied.getBases())) == (stacking.uid, True, 2)
    assert linear(meta=None).copy({}).getMeta() is None


def test_params_are_explained_and_set(spark):
    stacking = Stacking(bases=[LinearRegression()], numFolds=3, seed=4, runDir="d", idCol="i", parallelism=2)
    assert "numFolds: parts of the rows; a member is trained without one of them (default: 5, current: 3)" in (
        stacking.explainParams()
    )
    assert [stacking.getNumFolds(), stacking.getSeed(), stacking.getParallelism(), stacking.getIdCol()] == [
        3,
        4,
        2,
        "i",
    ]
    again = stacking.setNumFolds(6).setPassthrough(True).setBases([]).setMeta(None)
    assert (again.getNumFolds(), again.getPassthrough(), again.getBases(), again.getMeta()) == (6, True, [], None)


@pytest.mark.slow
def test_columns_of_the_meta_model_are_changed_by_a_map(some):
    stacking = linear()
    model = stacking.fit(some)
    assert model.transform(some, {model.meta.predictionCol: "q"}).columns[-1] == "q"
    assert model.transform(some).columns[-1] == "prediction"
    assert (model.uid, len(model.models)) == (stacking.uid, 2)


@pytest.mark.slow
def test_what_the_meta_model_reads_is_not_changed_by_a_map(some):
    level, lines = LevelOne(), [LinearRegression(labelCol="y").fit(some)]
    z = level.of(some, lines).withColumnRenamed(LEVEL_ONE, "z")
    meta: Any = LinearRegression(labelCol="y", featuresCol="z").fit(z)
    model: Any = StackingModel(lines, meta.setFeaturesCol(LEVEL_ONE), level)
    expected = model.transform(some).collect()
    assert model.transform(some, {meta.featuresCol: "features"}).collect() == expected
    scaler = StandardScaler(inputCol="z", outputCol="scaled").fit(z).setInputCol(LEVEL_ONE)
    piped: Any = StackingModel(lines, PipelineModel([scaler, meta]), level)
    copied = piped.copy({scaler.inputCol: "features", scaler.outputCol: "s", meta.featuresCol: "s"})
    first, second = copied.meta.stages
    assert (first.getInputCol(), first.getOutputCol(), second.getFeaturesCol()) == (LEVEL_ONE, "s", "s")


def test_what_a_network_of_level_one_reads_is_not_changed_by_a_map(spark):
    network = member(kind="regressor").setFeaturesCol(LEVEL_ONE)
    copied = StackingModel([], network).copy({network.inputCols: ["x", "y"], network.predictionCol: "q"})
    assert (copied.meta.getInputCols(), copied.meta.getPredictionCol()) == ([LEVEL_ONE], "q")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_seed_is_the_same_ensemble(some):
    bases = [DecisionTreeRegressor(labelCol="y"), torch_base(TorchRegressor, model=nets.column, labelCol="y")]
    members, predictions = list[Any](), list[Any]()
    for seed in (1, 1, 2):
        model = Stacking(bases=bases, numFolds=2, seed=seed, idCol="row").fit(some)
        members.append(LevelOne().of(some, model.models).select("row", LEVEL_ONE).orderBy("row").collect())
        found = model.transform(some).select("row", "prediction").orderBy("row").collect()
        predictions.append(np.array([row.prediction for row in found]))
    assert members[0] == members[1]
    assert members[0] != members[2]
    # Spark adds up what a linear regression needs in the order in which tasks end, so that last digits vary.
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-9)
    assert abs(predictions[0] - predictions[2]).max() > 1e-3


@pytest.mark.slow
def test_rows_are_numbered_where_they_have_no_ids(some):
    model = linear(idCol=None).fit(some.drop("row"))
    assert model.transform(some).columns == [*some.columns, "prediction"]
    assert model.report["rows"] == ROWS


# ---- kept, and saved -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_and_estimators_are_saved(some, tmp_path):
    stacking = linear(passthrough=True, bases=[torch_base(TorchRegressor, model=nets.column, labelCol="y")])
    model = stacking.fit(some)
    stacking.save(str(tmp_path / "estimator"))
    loaded = Stacking.load(str(tmp_path / "estimator"))
    assert [each.uid for each in loaded.bases()] == [each.uid for each in stacking.bases()]
    assert (loaded.getMeta().uid, loaded.getPassthrough(), loaded.getNumFolds()) == (stacking.getMeta().uid, True, 2)
    assert (loaded.uid, loaded.getIdCol()) == (stacking.uid, "row")
    PipelineModel([model]).save(str(tmp_path / "model"))
    (again,) = PipelineModel.load(str(tmp_path / "model")).stages
    assert isinstance(again, StackingModel)
    assert (again.uid, again.level, again.history, again.report) == (
        *(model.uid, model.level, model.history, model.report),
    )
    assert again.transform(some).collect() == model.transform(some).collect()


def test_an_estimator_without_a_meta_estimator_is_saved(spark, tmp_path):
    Stacking(bases=[LinearRegression(), DecisionTreeRegressor()]).save(str(tmp_path / "estimator"))
    loaded = Stacking.load(str(tmp_path / "estimator"))
    assert ([type(each) for each in loaded.getBases()], loaded.getMeta()) == (
        *([LinearRegression, DecisionTreeRegressor], None),
    )


@pytest.mark.slow
def test_what_failed_is_trained_again_and_nothing_else(some, tmp_path):
    class Mended(Failing):
        """It fails until it is mended, and is known by the same Params."""

        broken = True

        def _fit(self, dataset: DataFrame) -> Any:
            return super()._fit(dataset) if self.broken else LinearRegression(labelCol="y").fit(dataset)

    def ensemble(**given: Any) -> Stacking:
        bases = [LinearRegression(labelCol="y"), Mended(1.0, "y")]
        return linear(**{"bases": bases, "runDir": str(tmp_path / "run")} | given)

    with pytest.raises(SparkdlError, match="member 3"):
        ensemble().fit(some)
    Mended.broken = False
    model = ensemble().fit(some)
    assert (model.report["trained"], model.report["restored"]) == ([3, 4, 5, 6], [0, 1, 2])
    again = ensemble().fit(some)
    assert (again.report["trained"], again.report["restored"]) == ([], list(range(7)))
    assert again.transform(some).collect() == model.transform(some).collect()
    with pytest.raises(InvalidInput, match="numFolds"):
        ensemble(numFolds=3).fit(some)


@pytest.mark.slow
def test_other_ids_are_other_rows(some, tmp_path):
    """A row whose id has changed is in another fold, whose members have seen it."""
    linear(runDir=str(tmp_path / "run"), idCol=None).fit(some.drop("row").coalesce(1))
    with pytest.raises(InvalidInput, match="rows"):
        linear(runDir=str(tmp_path / "run"), idCol=None).fit(some.drop("row").orderBy("y"))


# ---- what is refused ------------------------------------------------------------------------------------------------

LINEAR = partial(LinearRegression, labelCol="y")

REFUSED: dict[str, tuple[Any, str]] = {
    "no bases": (lambda: {"bases": []}, r"bases is \[\]; expected one estimator at least"),
    "not given": (dict, r"bases is \[\]; expected one estimator at least"),
    "kinds": (
        lambda: {"bases": [LINEAR(), LogisticRegression(labelCol="y")]},
        r"bases are of several kinds: LinearRegression_\w+ is a regressor, LogisticRegression_\w+ is a classifier",
    ),
    "labels": (
        lambda: {"bases": [LINEAR(), LinearRegression(labelCol="coin")]},
        r"different label columns: \['y', 'coin'\]; expected the same labelCol",
    ),
    "no label": (lambda: {"bases": [LinearRegression()]}, "labelCol of the bases is 'label', which is no column"),
    "no labels at all": (
        lambda: {"bases": [torch_base(TorchEstimator, labelCol=None, loss=torch.nn.MSELoss())]},
        r"labelCol of TorchEstimator_\w+ is None; expected the labels that meta learns from",
    ),
    "several labels": (
        lambda: {"bases": [torch_base(TorchEstimator, labelCol=["y", "coin"], loss=torch.nn.MSELoss())]},
        r"labelCol is \['y', 'coin'\]; expected a meta estimator of several labels",
    ),
    "several labels, one of meta": (
        lambda: {
            "bases": [torch_base(TorchEstimator, labelCol=["y", "coin"], loss=torch.nn.MSELoss())],
            "meta": LinearRegression(),
        },
        r"meta is LinearRegression_\w+, which has one label",
    ),
    "no predictions": (lambda: {"bases": [StandardScaler(inputCol="x")]}, "StandardScaler, which has no predictionCol"),
    "meta has another label": (
        lambda: {"bases": [LINEAR()], "meta": LinearRegression(labelCol="coin")},
        "labelCol of meta is 'coin' and that of the bases 'y'; expected the same",
    ),
    "meta has no label": (
        lambda: {"bases": [LINEAR()], "meta": StandardScaler(inputCol="x")},
        r"meta is StandardScaler_\w+, which has no labelCol",
    ),
    "meta reads no vector": (
        lambda: {"bases": [LINEAR()], "meta": Pipeline(stages=[VectorAssembler(inputCols=["x"]), LINEAR()])},
        r"meta begins with VectorAssembler_\w+, which has no featuresCol and no inputCol",
    ),
    "features made by a base": (
        lambda: {
            "bases": [Pipeline(stages=[StandardScaler(inputCol="x", outputCol="s"), LINEAR(featuresCol="s")])],
            "passthrough": True,
        },
        r"passthrough=True, but the features \['s'\] of Pipeline_\w+ are no columns",
    ),
    "too many folds": (
        lambda: {"bases": [LINEAR()], "numFolds": ROWS + 1},
        f"there are {ROWS} rows for numFolds={ROWS + 1}",
    ),
    "one class": (
        lambda: {"bases": [LogisticRegression(labelCol="one")]},
        "all labels in 'one' are 1; expected rows of two classes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_before_anything_is_trained(data, name, monkeypatch):
    monkeypatch.setattr("sparkdl.ensembles.stacking.fit_members", lambda *_: pytest.fail("it was trained"))
    given, message = REFUSED[name]
    with pytest.raises(InvalidInput, match=message):
        Stacking(**{"idCol": "row"} | given()).fit(data.withColumn("one", F.lit(1.0)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bases": [3]}, r"bases is \[3\]; expected a list of pyspark.ml Estimators"),
        ({"bases": [], "meta": "best"}, "meta is 'best'; expected a pyspark.ml Estimator"),
    ],
)
def test_what_is_refused_when_it_is_given(spark, given, message):
    with pytest.raises(InvalidInput, match=message):
        Stacking(**given)
    with pytest.raises(InvalidInput, match="expected a list of pyspark"):
        Stacking(bases=LinearRegression())


def test_a_model_that_does_not_predict_is_refused(data):
    scaler = StandardScaler(inputCol="features", outputCol="scaled").fit(data)
    with pytest.raises(InvalidInput, match=rf"the model {scaler.uid} of base 0 writes none of probabilityCol"):
        LevelOne().of(data, [scaler])
