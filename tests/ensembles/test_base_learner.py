"""What an ensemble asks of a base estimator, whichever library it comes from."""

from __future__ import annotations

import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC, LogisticRegression, OneVsRest
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.regression import DecisionTreeRegressor

from sparkdl import TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from sparkdl.ensembles.base_learner import changed, column, kind_of, leaf, trains_in_task
from sparkdl.ensembles.resampling.feature_slicing import Dropper
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from tests.ml import nets

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(last):
    return Pipeline(stages=[VectorAssembler(inputCols=["a"], outputCol="features"), last])


def torch_model():
    return TorchModel(factory=nets.scores, weights=pack(nets.scores()))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        *((TorchClassifier, "classifier"), (TorchRegressor, "regressor"), (TorchEstimator, "estimator")),
        *((LogisticRegression, "classifier"), (LinearSVC, "classifier"), (OneVsRest, "classifier")),
        *((DecisionTreeRegressor, "regressor"), (DecisionTreeClassifier, "classifier")),
    ],
)
def test_what_a_base_predicts(make, kind):
    assert kind_of(make()) == kind
    assert kind_of(pipeline(make())) == kind
    assert kind_of(pipeline(pipeline(make()))) == kind


@pytest.mark.parametrize("make", [lambda: None, VectorAssembler, lambda: LogisticRegression, torch_model])
def test_what_is_no_estimator_is_refused(make):
    with pytest.raises(InvalidInput, match=r"base is .*; expected a pyspark\.ml Estimator"):
        kind_of(make())


def test_an_estimator_that_predicts_nothing_is_refused():
    with pytest.raises(InvalidInput, match="base is a StandardScaler, which has no predictionCol"):
        kind_of(StandardScaler())
    for stages in ([], [VectorAssembler()]):
        with pytest.raises(InvalidInput, match="does not end in an estimator"):
            kind_of(Pipeline(stages=stages))


def test_the_leaf_of_a_pipeline():
    last = LogisticRegression()
    assert leaf(last) is last
    assert leaf(pipeline(pipeline(last))) is last


def test_the_leaf_of_a_fitted_pipeline_is_the_last_that_predicts():
    assembler, model = VectorAssembler(inputCols=["a"], outputCol="features"), torch_model()
    inner = PipelineModel([assembler, model, Dropper(["features"])])
    assert leaf(inner) is model
    assert leaf(PipelineModel([assembler, inner])) is model
    assert leaf(PipelineModel([torch_model(), model])) is model
    assert column(PipelineModel([assembler, inner]), "predictionCol") == "prediction"
    assert column(PipelineModel([assembler]), "predictionCol") is None


def test_columns_of_a_base():
    base = pipeline(LogisticRegression(labelCol="y"))
    assert column(base, "labelCol") == "y"
    assert column(base, "weightCol") is None
    assert column(base, "validationIndicatorCol") is None
    assert column(TorchClassifier(weightCol="w", rawPredictionCol=""), "weightCol") == "w"
    assert column(TorchClassifier(rawPredictionCol=""), "rawPredictionCol") is None
    assert column(TorchEstimator(labelCol=["a", "b"]), "labelCol") is None
    assert column(KMeans(), "predictionCol") == "prediction"


@pytest.mark.parametrize("wrap", [lambda base: base, pipeline, lambda base: pipeline(pipeline(base))])
def test_a_changed_copy(wrap):
    base = wrap(DecisionTreeClassifier(maxDepth=3))
    found = changed(base, seed=7, weightCol="w", epochs=5)
    assert leaf(found).getOrDefault("seed") == 7
    assert (column(found, "weightCol"), leaf(found).getOrDefault("maxDepth")) == ("w", 3)
    assert leaf(base).getOrDefault("seed") != 7
    assert column(base, "weightCol") is None
    assert found.uid == base.uid


def test_what_trains_in_a_task():
    assert trains_in_task(TorchClassifier())
    assert not trains_in_task(TorchClassifier(numWorkers=2))
    assert not trains_in_task(TorchClassifier(strategy=ParallelSGD()))
    assert not trains_in_task(TorchClassifier(device="cuda"))
    assert not trains_in_task(LogisticRegression())
    assert not trains_in_task(pipeline(TorchClassifier()))
