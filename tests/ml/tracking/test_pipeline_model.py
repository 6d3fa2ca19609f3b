"""A saved pipeline is registered only if it predicts without Spark as with it."""

from functools import partial
from unittest.mock import Mock

import pyarrow as pa
import pytest
from mlflow import MlflowClient
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml import feature as spark_feature
from pyspark.ml.classification import LogisticRegression
from torch import nn

from sparkdl import InvalidInput, SparkdlError, TorchClassifier, TorchModel
from sparkdl.io.weights import pack
from sparkdl.ml.tracking import registration as registration_module
from sparkdl.ml.tracking.pipeline_model import check_stages, verify
from sparkdl.ml.tracking.registration import Registration
from sparkdl.serving.features import assembling
from sparkdl.serving.features.column import Column
from sparkdl.serving.loading import load_predictor

SCHEMA = "name string, age double, visits bigint, member boolean, paid float, scores array<double>"
ROWS = [
    ("a", 1.5, 3, True, 0.5, [1.0, 2.0]),
    (None, None, None, None, None, [0.0, 1.0]),
    ("é", -2.0, 0, False, 1.5, [3.0, 4.0]),
]
INPUTS = ["name", "age", "visits", "member", "paid"]


@pytest.fixture(scope="module")
def saved(spark, tmp_path_factory):
    """A pipeline that needs no fit, saved by Spark, and rows."""
    path = str(tmp_path_factory.mktemp("saved") / "pipeline")
    rows = spark.createDataFrame(ROWS, SCHEMA).coalesce(1)
    model = TorchModel(factory=partial(nn.Linear, 8, 3), weights=pack(nn.Linear(8, 3)), kind="classifier")
    model.columnTypes = dict(rows.dtypes)
    hashed = {"numFeatures": 8, "categoricalCols": ["visits", "paid"]}
    stages = [
        spark_feature.FeatureHasher(inputCols=INPUTS, outputCol="features", **hashed),
        model,
        spark_feature.IndexToString(inputCol="prediction", outputCol="class", labels=["x", "y", "z"]),
        spark_feature.Binarizer(inputCol="prediction", outputCol="first"),
        spark_feature.Normalizer(inputCol="probability", outputCol="unit"),
    ]
    PipelineModel(stages=stages).save(path)
    return path, rows


def test_signature_of_a_verified_pipeline(saved):
    path, rows = saved
    verified = verify(path, rows)
    types = ["string", "double", "long", "boolean", "float"]
    assert verified.inputs == list(zip(INPUTS, types, [0] * 5, strict=True))
    outputs = [("prediction", "double", 0), ("probability", "float", 1), ("rawPrediction", "float", 1)]
    assert verified.outputs == [*outputs, ("class", "string", 0), ("first", "double", 0), ("unit", "double", 1)]
    assert verified.rows == len(ROWS)
    assert type(verified).of(verified.json()) == verified
    assert len(load_predictor(path).predict({name: [] for name in INPUTS})) == 0
    table = load_predictor(path).predict(pa.Table.from_pandas(rows.toPandas()))
    assert [str(table.schema.field(name).type).partition("<")[0] for name, *_ in outputs] == ["double", "list", "list"]
    assert table.schema.field("rawPrediction").type.value_type == pa.float32()


def test_other_predictions_than_spark_s_are_not_registered(saved, monkeypatch):
    path, rows = saved
    with monkeypatch.context() as patch:
        patch.setattr(assembling, "bucket", lambda text, buckets: len(text) % buckets)
        message = r"without Spark, '\w+' from \w+ of row \d is .*, and with Spark .*; nothing is reg"
        with pytest.raises(SparkdlError, match=message):
            verify(path, rows)
    with pytest.raises(InvalidInput, match=r"the pipeline reads 'paid'; the rows have 'name', 'age'"):
        verify(path, rows.drop("paid"))
    with pytest.raises(InvalidInput, match=r"column 'age' has type decimal\(4,2\), which has no type in MLflow; cast"):
        verify(path, rows.withColumn("age", rows["age"].cast("decimal(4,2)")))
    with pytest.raises(InvalidInput, match="there is no row to compare predictions on"):
        verify(path, rows.limit(0))


def test_integers_of_a_pipeline_without_types_are_not_registered(saved, tmp_path):
    path, rows = saved
    for stage in (older := PipelineModel.load(path)).stages:
        if isinstance(stage, TorchModel):
            stage.columnTypes = {}
    older.save(str(tmp_path / "older"))
    with (
        pytest.warns(UserWarning, match="was saved without Spark's types of 'name', 'age', 'visits', 'member', 'paid'"),
        pytest.raises(SparkdlError, match=r"without Spark, '\w+' from pandas of row \d is"),
    ):
        verify(str(tmp_path / "older"), rows)


def test_killed_registration_resumes_in_its_run(saved, store, monkeypatch):
    path, rows = saved
    registration, verified = Registration("week", store, "week"), verify(path, rows)
    log = partial(registration.log, path, verified, version="v-1", metrics={"area under ROC!": 0.5}, tags={"a": "b"})
    with monkeypatch.context() as patch:
        patch.setattr(registration_module, "register", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            log()
    assert [log(), log()] == [{"name": "week", "version": "1"}] * 2
    mlflow = MlflowClient(store)
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("week").experiment_id])
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"area under ROC_": 0.5})
    (version,) = mlflow.search_model_versions("name = 'week'")
    assert (version.run_id, version.tags["a"]) == (run.info.run_id, "b")
    assert log(version="v-2")["version"] == "2"


def test_batches_of_rows_do_not_change_predictions(saved):
    path, rows = saved
    pipeline, frame = load_predictor(path), rows.toPandas()
    whole = pipeline.predict(frame)
    pipeline._rows = 2
    assert all(list(pipeline.predict(frame)[name]) == list(whole[name]) for name in ("prediction", "class"))
    with pytest.raises(InvalidInput, match="the data has no 'paid'; it has 'name', 'age'"):
        pipeline.predict(frame.drop(columns="paid"))
    with pytest.raises(InvalidInput, match="the data is a list; expected a DataFrame or a Table with 'name'"):
        pipeline.predict([1])


def test_nulls_before_the_network_are_named(saved):
    stages = load_predictor(saved[0])._stages.stages
    with pytest.raises(InvalidInput, match="the column 'features' of the PyTorch stage has 1 nulls"):
        stages[1].transform({"features": Column.of(pa.array([[0.0] * 8, None]))})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (lambda: [LogisticRegression()], "the stage LogisticRegression cannot be served without Spark; expected Binar"),
        (lambda: [Pipeline(stages=[spark_feature.PCA()])], "the stage PCA cannot"),
        (lambda: [spark_feature.SQLTransformer()], "the stage SQLTransformer cannot"),
        (lambda: [spark_feature.QuantileDiscretizer(handleInvalid="skip")], "handleInvalid of QuantileDiscretizer is"),
        (lambda: [spark_feature.IndexToString(inputCol="p")], "IndexToString has no labels, and no StringIndexer adds"),
        (lambda: [spark_feature.StringIndexer()], "no stage is a PyTorch estimator of sparkdl"),
    ],
)
def test_stages_that_are_refused_before_training(spark, stages, message):
    with pytest.raises(InvalidInput, match=message):
        check_stages(stages())


def test_supported_stages_pass(spark):
    indexer = spark_feature.StringIndexer(inputCol="name", outputCol="index")
    back = spark_feature.IndexToString(inputCol="index", outputCol="again")
    check_stages([Pipeline(stages=[indexer, back]), TorchClassifier(model=partial(nn.Linear, 2, 2))])


@pytest.mark.parametrize("name", ["", " ", "a/b", "a:b", "it's"])
def test_names_of_registered_models(name):
    with pytest.raises(InvalidInput, match="expected one without / : and quotes"):
        Registration(name)
