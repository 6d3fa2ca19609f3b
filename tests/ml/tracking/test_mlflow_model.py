"""Models in MLflow, loaded in another process, without Spark and without Java."""

import importlib
import json
import threading
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from sparkdl.data.columns import InputColumn
from sparkdl.ml.tracking import MLflow
from tests.ml import nets
from tests.ml.tracking.fake_run import FakeRun, epoch, runs, without_java
from tests.serving.format.test_export import Choosy
from tests.serving.test_predictor import X, made
from tests.serving.test_predictor import columns as predict

TOKENS = [[1, 2], [], [3, 4, 5]]

_LOAD = """
import json, sys
import mlflow, numpy as np, pandas as pd
for uri, x in json.loads(sys.argv[1]):
    result = mlflow.pyfunc.load_model(uri).predict(pd.DataFrame({"x": x}))
    print(json.dumps({name: np.stack(list(result[name])).tolist() for name in result}))
from pyspark import SparkContext
assert SparkContext._gateway is None
"""

_CODE = """
from torch import nn

class OwnNet(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
"""


def log(store, model, **settings):
    """MLflow's run and logged model."""
    fake = FakeRun(MLflow("digits", store, **settings))
    fake.rows(epoch(1), epoch(2))
    fake.end(model=model)
    client = mlflow.MlflowClient(store)
    run = runs(store)[-1]
    return run, client.get_logged_model(run.outputs.model_outputs[0].model_id)


def check_same(one, other):
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=1e-6)


@pytest.mark.slow
def test_logged_models_predict_in_another_process(store, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    (code / "net_of_a_user.py").write_text(_CODE)
    monkeypatch.syspath_prepend(str(code))
    own, pickled = made(importlib.import_module("net_of_a_user").OwnNet), made(lambda: Choosy(3, 3))
    bag = made(nets.Bag, "regressor", None, columnSpecs=[InputColumn("x", ragged="offsets")])
    versions = [made(thresholds=[1.0, version, 1.0]) for version in (1.0, 2.0)]

    for model in versions:
        run, logged = log(store, model, registered_model_name="digits")
    assert (logged.name, logged.status, logged.source_run_id) == ("model", "READY", run.info.run_id)
    assert [output.step for output in run.outputs.model_outputs] == [2]
    assert logged.params["precision"] == "fp32"
    client = mlflow.MlflowClient(store)
    assert sorted(int(entry.version) for entry in client.search_model_versions("name = 'digits'")) == [1, 2]
    assert client.get_model_version("digits", "2").run_id == run.info.run_id
    others = [log(store, own, code_paths=[str(code / "net_of_a_user.py")]), log(store, bag)]
    with pytest.warns(UserWarning, match="saved as a pickle"):
        others.insert(1, log(store, pickled))
    uris = [f"runs:/{run.info.run_id}/model", "models:/digits/2"]
    uris += [f"models:/{other.model_id}" for _, other in others]

    data = [X.tolist()] * 4 + [TOKENS]
    printed = without_java(_LOAD, json.dumps(list(zip(uris, data, strict=True))), store, tmp_path)
    models = (versions[1], versions[1], own, pickled, bag)
    for model, x, line in zip(models, data, printed.splitlines(), strict=True):
        check_same({name: np.array(values) for name, values in json.loads(line).items()}, predict(model, {"x": x}))
    np.testing.assert_allclose(json.loads(line)["prediction"], [0.15, 0, 0.6], rtol=1e-6)


def test_inputs_signature_and_requirements(store):
    model = mlflow.pyfunc.load_model(log(store, made())[1].artifact_location)
    frames = [pd.DataFrame({"x": list(X)}), pd.DataFrame({"x": X.astype(np.float64).tolist(), "more": 1})]
    for data in (X, {"x": X}, *frames):
        result = model.predict(data)
        check_same({name: np.stack(list(result[name])) for name in result}, predict(made(), X))
    signature = model.metadata.signature
    assert [(spec.name, spec.shape, str(spec.type)) for spec in signature.inputs] == [("x", (-1, 3), "float32")]
    assert signature.outputs.input_names() == ["prediction", "probability", "rawPrediction"]
    text = Path(mlflow.artifacts.download_artifacts(f"{model.metadata.artifact_path}/requirements.txt")).read_text()
    assert {line.partition("==")[0] for line in text.split()} == {"sparkdl-torch[spark]", "torch", "mlflow-skinny"}
    assert "+" not in text


def test_models_that_are_not_logged_or_cannot_be(store):
    client, lock = mlflow.MlflowClient(store), threading.Lock()  # which has no pickle
    FakeRun(MLflow("digits", store, log_model=False)).end(model=made())
    experiment = client.get_experiment_by_name("digits").experiment_id
    assert not client.search_logged_models([experiment])
    model = made(collate=lambda inputs, target: (inputs, target) if lock else None)
    with pytest.warns(RuntimeWarning, match=r"MLflow\.on_end failed: InvalidInput: .*collate.* cannot be"):
        FakeRun(MLflow("digits", store)).end(model=model)
    assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
    assert [logged.status for logged in client.search_logged_models([experiment])] == ["FAILED"]
