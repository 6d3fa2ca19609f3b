"""Queries of base estimators, independent of their library."""

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import DecisionTreeClassifier, LinearSVC, LogisticRegression, OneVsRest
from pyspark.ml.clustering import KMeans
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import SQLTransformer, StandardScaler, VectorAssembler
from pyspark.ml.regression import DecisionTreeRegressor

from sparkdl import Bagging, BestOf, Boosting, Stacking, TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from sparkdl.ensembles.base_learner import changed, check_member, column, kind_of, leaf
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.trials.single_worker import trains_in_task, with_one_worker
from sparkdl.rounds.algorithms.parallel_sgd import ParallelSGD
from sparkdl.spark.session.settings import EXECUTOR_GPUS
from sparkdl.spark.slots import task_resources, worker_count
from tests.ml import nets
from tests.sessions import frame

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(last):
    return Pipeline(stages=[VectorAssembler(inputCols=["a"], outputCol="features"), last])


def torch_model():
    return TorchModel(factory=nets.scores, weights=pack(nets.scores()))


KINDS = {
    "classifier": [TorchClassifier, LogisticRegression, LinearSVC, OneVsRest, DecisionTreeClassifier],
    "regressor": [TorchRegressor, DecisionTreeRegressor],
    "estimator": [TorchEstimator],
}


def test_kinds_and_leaves():
    for kind, makes in KINDS.items():
        for make in makes:
            base = make()
            assert leaf(pipeline(pipeline(base))) is leaf(base) is base
            assert kind_of(base) == kind_of(pipeline(base)) == kind_of(pipeline(pipeline(base))) == kind


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((make, r"base is .*; expected a pyspark\.ml Estimator") for make in (lambda: None, VectorAssembler)),
        *((make, r"expected a pyspark\.ml Estimator") for make in (lambda: LogisticRegression, torch_model)),
        (StandardScaler, "base is a StandardScaler, which has no predictionCol"),
        (lambda: Pipeline(stages=[]), "does not end in an estimator"),
        (lambda: Pipeline(stages=[VectorAssembler()]), "does not end in an estimator"),
    ],
)
def test_base_that_does_not_predict_raises(make, message):
    with pytest.raises(InvalidInput, match=message):
        kind_of(make())


@pytest.mark.parametrize(
    ("several", "message"),
    [
        (True, "has multiLabel=True; ensembles expect members that predict one class"),
        (False, r"label column 'y' of the base .* has arrays; ensembles expect"),
    ],
)
def test_bases_with_several_labels_of_a_row_raise_before_a_job(spark, several, message):
    base = TorchClassifier(model=nets.two_scores, inputCols=["x"], labelCol="y", multiLabel=several)
    rows, tracker = frame({"x": np.zeros((8, 3)), "y": np.zeros((8, 2))}), spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    for ensemble in (
        Bagging(base=base),
        Bagging(base=Pipeline(stages=[base])),
        Boosting(base=base),
        Stacking(bases=[base], meta=LogisticRegression()),
        BestOf(candidates=[base], evaluator=MulticlassClassificationEvaluator(labelCol="y")),
    ):
        with pytest.raises(InvalidInput, match=message):
            ensemble.fit(rows)
    assert set(tracker.getJobIdsForGroup(None)) == before
    for kind, output in (("multilabel", None), ("classifier", [3, 4])):
        model = TorchModel(factory=nets.scores, weights=pack(nets.scores()), kind=kind, output=output)
        with pytest.raises(InvalidInput, match="the model predicts an array of labels; ensembles expect"):
            check_member("the model", model)


def test_leaf_of_a_fitted_pipeline_is_the_last_that_predicts():
    assembler, model = VectorAssembler(inputCols=["a"], outputCol="features"), torch_model()
    inner = PipelineModel([assembler, model, SQLTransformer(statement="SELECT * EXCEPT (features) FROM __THIS__")])
    for fitted in (inner, PipelineModel([assembler, inner]), PipelineModel([torch_model(), model])):
        assert leaf(fitted) is model
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


def test_changed_copies_the_last_stage():
    for wrap in (lambda base: base, pipeline, lambda base: pipeline(pipeline(base))):
        base = wrap(DecisionTreeClassifier(maxDepth=3))
        copied = changed(base, seed=7, weightCol="w", epochs=5)
        assert (leaf(copied).getSeed(), column(copied, "weightCol"), leaf(copied).getMaxDepth()) == (7, "w", 3)
        assert (leaf(base).getSeed() == 7, column(base, "weightCol"), copied.uid) == (False, None, base.uid)


def test_base_of_a_gang_has_one_worker_by_default():
    for wrap in (lambda base: base, pipeline):
        base = wrap(TorchClassifier())
        assert (leaf(with_one_worker(base)).getNumWorkers(), leaf(base).getNumWorkers()) == (1, None)
        for same in (TorchClassifier(numWorkers=2), TorchClassifier(strategy=ParallelSGD()), LogisticRegression()):
            base = wrap(same)
            assert with_one_worker(base) is base
    nested = OneVsRest(classifier=TorchClassifier())
    assert [base.getClassifier().getNumWorkers() for base in (with_one_worker(nested), nested)] == [1, None]


def test_bases_that_train_in_tasks(spark):
    for given in ({}, {"numWorkers": 1}):
        assert trains_in_task(TorchClassifier(**given), spark)
    for given in ({"numWorkers": 2}, {"strategy": ParallelSGD()}):
        assert not trains_in_task(TorchClassifier(**given), spark)
    assert not trains_in_task(LogisticRegression(), spark)
    assert not trains_in_task(pipeline(TorchClassifier()), spark)


def test_members_train_in_tasks_on_gpus_only_if_spark_assigns_them(spark, monkeypatch):
    """The slots of a host without assigned GPUs would all train on the same few."""
    base = TorchClassifier(device="cuda")
    assert not trains_in_task(base, spark)
    with pytest.raises(InvalidInput, match=r"partitioned is True.*Spark has to assign GPUs to tasks"):
        Bagging(base=base, partitioned=True).fit(spark.range(2).selectExpr("array(id) AS features", "id AS label"))
    monkeypatch.setattr(spark.sparkContext, "master", "spark://host:7077")
    for module in (task_resources, worker_count):
        monkeypatch.setattr(module, "setting", lambda spark, key: {EXECUTOR_GPUS: "2"}.get(key))
    assert trains_in_task(base, spark)
    assert not trains_in_task(base.copy({base.numWorkers: 2}), spark)
