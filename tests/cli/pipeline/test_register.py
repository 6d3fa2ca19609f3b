"""The pipeline registers the whole PipelineModel in MLflow, which serves it without Spark."""

import json
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from pyspark.ml import PipelineModel

from sparkdl.ml.tracking.registration import Registration
from tests.cli.pipeline.week import DAY, Killed
from tests.ml.tracking.fake_run import without_java

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SIDE = "case when a > 0.5 then 'up' when a < -1.5 then null else 'down' end"
FEATURES = [
    ("StringIndexer", {"inputCol": "side", "outputCol": "index", "handleInvalid": "keep"}),
    ("OneHotEncoder", {"inputCol": "index", "outputCol": "one_hot"}),
    ("FeatureHasher", {"inputCols": ["side", "b"], "outputCol": "hashed", "numFeatures": 4}),
    ("VectorAssembler", {"inputCols": ["a", "b", "one_hot", "hashed"], "outputCol": "raw"}),
    ("StandardScaler", {"inputCol": "raw", "outputCol": "features", "withMean": True}),
]
_SERVE = """
import sys
import mlflow, numpy as np, pandas as pd
model = mlflow.pyfunc.load_model("models:/week@champion")
rows = pd.read_json(sys.argv[1], dtype={"a": float, "b": float})
result = model.predict(rows)
assert list(result) == ["prediction", "probability", "rawPrediction"], list(result)
print(pd.DataFrame({name: [np.asarray(value).tolist() for value in result[name]] for name in result}).to_json())
try:
    model.predict(rows.drop(columns="b"))
except Exception as error:
    assert "Model is missing inputs ['b']" in str(error), error
from pyspark import SparkContext
from pyspark.sql import SparkSession
assert SparkContext._gateway is None and SparkSession._instantiatedSession is None
"""


@pytest.fixture
def registering(small, store):
    """A pipeline with feature stages that registers its model."""
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 8, "out_features": 2}}
    classifier = {"model": linear, "learningRate": 0.1, "epochs": 2, "batchSize": 32}
    stages = [{"class_path": f"pyspark.ml.feature.{kind}", "init_args": values} for kind, values in FEATURES]
    small.keys = {
        "clean": {"label": "y", "columns": {"side": SIDE}},
        "score": {"data": {"path": str(small.folder / "new"), "format": "parquet"}},
        "stages": [*stages, {"class_path": "sparkdl.TorchClassifier", "init_args": classifier}],
        "register": {"name": "week", "tracking_uri": store, "experiment": "week"},
    }
    return small


def served(store, rows, tmp_path):
    """What MLflow's model predicts of rows of JSON, in a process without Java."""
    file = tmp_path / "rows.json"
    rows.to_json(file)
    return json.loads(without_java(_SERVE, str(file), store, tmp_path))


def test_published_model_is_registered_once_and_served_without_spark(registering, store, tmp_path, monkeypatch):
    small = registering
    with monkeypatch.context() as patch:  # after the registration, and before the ledger notes it
        patch.setattr(Registration, "point", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            small.run()
    assert set(small.stages()) == {"etl", "start", "train", "gate", "verify", "publish"}
    code, printed = small.run()
    assert (code, "registered as version 1 of week in MLflow" in printed) == (0, True), printed
    assert small.run()[0] == 0  # the date is finished

    done = json.loads((small.root / f"runs/{DAY}/done.json").read_text())
    mlflow = MlflowClient(store)
    assert done["registered"] == {"name": "week", "version": "1"}
    (version,) = mlflow.search_model_versions("name = 'week'")
    assert mlflow.get_model_version_by_alias("week", "champion").version == version.version
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("week").experiment_id])
    assert (run.info.status, run.info.run_id) == ("FINISHED", version.run_id)
    assert run.data.metrics == {"areaUnderROC": done["metrics"]["areaUnderROC"]["value"]}
    tags = {"run": DAY, "date": DAY, "version": done["version"]}
    assert {key: run.data.tags[f"sparkdl.pipeline.{key}"] for key in tags} == tags

    scores = pq.read_table(small.root / f"scores/date={DAY}").to_pylist()
    table = pd.DataFrame(scores)[["a", "b", "side"]]
    predicted = served(store, table, tmp_path)
    chances = np.array([row["probability"]["values"] for row in scores])
    np.testing.assert_allclose(list(predicted["probability"].values()), chances, rtol=1e-5, atol=1e-6)
    assert [*predicted["prediction"].values()] == [row["prediction"] for row in scores]
    assert any(row["side"] is None for row in scores)
    (folder,) = (small.folder / "store").glob("**/data/*/metadata")
    assert len(PipelineModel.load(str(folder.parent)).stages) == len(FEATURES) + 1


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("pyspark.ml.feature.PCA", {"k": 1, "inputCol": "raw", "outputCol": "pca"}, "the stage PCA cannot be served"),
        (None, {"tracking_uri": "http://127.0.0.1:1"}, "MLflow does not answer at http://127.0.0.1:1"),
        (None, {"code_paths": ["/nowhere.py"]}, "code_paths has '/nowhere.py', which does not exist"),
    ],
)
def test_model_that_cannot_be_registered_is_refused_before_training(registering, monkeypatch, kind, arguments, text):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    if kind is None:
        registering.keys["register"] |= arguments
    else:
        registering.keys["stages"].insert(-1, {"class_path": kind, "init_args": arguments})
    for words in ([], ["--check"]):
        code, printed = registering.run(*words)
        assert (code, text in printed) == (2, True), printed
        assert not (registering.root / "runs").exists()
