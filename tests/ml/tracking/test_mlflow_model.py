"""Models that MLflow gives back: in another process, without Spark and without Java."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl.data.columns import InputColumn
from sparkdl.io.weights import pack
from sparkdl.ml.inference.local import InProcess
from sparkdl.ml.model import TorchModel
from sparkdl.ml.tracking import MLflow
from tests.ml import nets, typed_nets
from tests.ml.tracking.events_told import Told, epoch
from tests.sessions import ROOT

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)

# What a user has in a process of their own: MLflow, this package, and nothing of the fit.
_LOAD = """
import json, sys
import mlflow, numpy as np, pandas as pd
uri, rows = sys.argv[1], json.loads(sys.argv[2])
model = mlflow.pyfunc.load_model(uri)
found = model.predict(pd.DataFrame({name: values for name, values in rows.items()}))
from pyspark import SparkContext
assert SparkContext._gateway is None
print(json.dumps({name: np.stack(list(found[name])).tolist() for name in found}))
"""


def made(factory=nets.scores, kind="classifier", signature=(([3], "float32"),), **params):
    weights = pack(factory() if callable(factory) else factory)
    model = TorchModel(factory=factory, weights=weights, kind=kind, signature=signature and list(signature))
    return model._set(**{"inputCols": ["x"]} | params)


def log(store, model, **settings):
    """What the client has of the run and of the model that was logged with it."""
    import mlflow

    run = Told(MLflow("digits", store, **settings))
    run.rows(epoch(1), epoch(2))
    run.end(model=model)
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id], max_results=1)
    return found, client.get_logged_model(found.outputs.model_outputs[0].model_id)


def load(store, uri, rows, *paths, folder):
    """What a process of its own predicts."""
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith(("MLFLOW", "DO_NOT"))},
        "MLFLOW_TRACKING_URI": store,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]),
        "PATH": "/nowhere",
        "JAVA_HOME": "/nowhere",
        "HOME": str(folder),
    }
    argv = [sys.executable, "-c", _LOAD, uri, json.dumps(rows)]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: np.array(values) for name, values in json.loads(done.stdout.splitlines()[-1]).items()}


def here(model, data=X):
    found = InProcess(model).predict(data)
    return {name: np.stack(list(found[name])) for name in found}


def same(one, other):
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=1e-6)


def test_the_model_of_a_run_predicts_in_another_process(store, tmp_path):
    model = made(thresholds=[1.0, 2.0, 3.0])
    run, logged = log(store, model)
    assert (logged.name, logged.status, logged.source_run_id) == ("model", "READY", run.info.run_id)
    assert [each.step for each in run.outputs.model_outputs] == [2]
    assert logged.params["precision"] == "fp32"
    for uri in (f"runs:/{run.info.run_id}/model", f"models:/{logged.model_id}"):
        same(load(store, uri, {"x": X.tolist()}, folder=tmp_path), here(model))


@pytest.mark.slow
def test_its_own_code_goes_with_it(store, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(Path(__file__).with_name("own_net.py"), code / "net_of_a_user.py")
    monkeypatch.syspath_prepend(str(code))
    model = made(importlib.import_module("net_of_a_user").OwnNet)
    _, logged = log(store, model, code_paths=[str(code / "net_of_a_user.py")])
    same(load(store, f"models:/{logged.model_id}", {"x": X.tolist()}, folder=tmp_path), here(model))


@pytest.mark.slow
def test_a_class_of_a_notebook_needs_no_code(store, tmp_path):
    model = made(nets.inner())
    _, logged = log(store, model)
    same(load(store, f"models:/{logged.model_id}", {"x": X.tolist()}, folder=tmp_path), here(model))


@pytest.mark.slow
def test_what_torch_cannot_export_and_nobody_can_import_is_pickled_by_value(store, tmp_path):
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            nn.init.eye_(self.inner.weight)
            nn.init.zeros_(self.inner.bias)

        def forward(self, x):
            return self.inner(x) if float(x.sum()) > 0 else -self.inner(x)

    model = made(Branching)
    with pytest.warns(UserWarning, match="saved as a pickle"):
        _, logged = log(store, model)
    same(load(store, f"models:/{logged.model_id}", {"x": X.tolist()}, folder=tmp_path), here(model))


@pytest.mark.slow
def test_several_inputs_and_no_signature(store, tmp_path):
    bag = made(typed_nets.Bag, "regressor", None, columnSpecs=[InputColumn("x", ragged="offsets")])
    _, logged = log(store, bag)
    found = load(store, f"models:/{logged.model_id}", {"x": [[1, 2], [], [3, 4, 5]]}, folder=tmp_path)
    np.testing.assert_allclose(found["prediction"], [0.15, 0, 0.6], rtol=1e-6)


@pytest.fixture
def loaded(store):
    import mlflow

    def given(model):
        run, logged = log(store, model)
        return mlflow.pyfunc.load_model(logged.artifact_location), run

    return given


def test_what_mlflow_asks_with_is_taken(loaded):
    model = made()
    found, _ = loaded(model)
    frames = [pd.DataFrame({"x": list(X)}), pd.DataFrame({"x": X.astype(np.float64).tolist(), "more": 1})]
    for data in (X, {"x": X}, *frames):
        given = found.predict(data)
        same({name: np.stack(list(given[name])) for name in given}, here(model))


def test_the_signature_says_what_goes_in_and_out(loaded):
    signature = loaded(made())[0].metadata.signature
    assert [(each.name, each.shape, str(each.type)) for each in signature.inputs] == [("x", (-1, 3), "float32")]
    assert signature.outputs.input_names() == ["prediction", "probability", "rawPrediction"]


def test_several_inputs_of_several_shapes(loaded):
    types = (([3, 2], "float32"), ([], "int64"), ([], "float32"))
    model = made(nets.Scaled, "regressor", types)._set(inputCols=["x", "kind", "price"])
    arrays = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 3, 2),
        "kind": np.array([0, 1, 2, 3]),
        "price": np.array([0.5, 1.5, 2.5, 3.5], np.float32),
    }
    found, _ = loaded(model)
    flat = pd.DataFrame({"x": arrays["x"].reshape(4, 6).tolist(), "kind": arrays["kind"], "price": arrays["price"]})
    for data in (arrays, flat):
        same({"prediction": found.predict(data)["prediction"].to_numpy()}, here(model, arrays))


def test_a_model_in_double_precision_takes_doubles(loaded):
    model = TorchModel(
        factory=nets.Line,
        weights=pack(nets.Line().double()),
        kind="regressor",
        precision="fp64",
        signature=[([3], "float64")],
    )._set(inputCols=["x"])
    found, _ = loaded(model)
    with torch.inference_mode():
        wanted = nets.Line().double()(torch.from_numpy(X).double()).numpy()
    np.testing.assert_allclose(found.predict(X.astype(np.float64))["prediction"], wanted, rtol=1e-12)


def test_requirements_name_the_versions(loaded):
    import mlflow

    found, _ = loaded(made())
    text = Path(mlflow.artifacts.download_artifacts(f"{found.metadata.artifact_path}/requirements.txt")).read_text()
    assert {line.partition("==")[0] for line in text.split()} == {"sparkdl-torch[spark]", "torch", "mlflow-skinny"}
    assert "+" not in text


@pytest.mark.slow
def test_a_model_is_the_next_version_of_a_registered_one(store, tmp_path):
    import mlflow

    for version in (1, 2):
        run, _ = log(store, made(thresholds=[1.0, version, 1.0]), registered_model_name="digits")
    client = mlflow.MlflowClient(store)
    versions = client.search_model_versions("name = 'digits'")
    assert sorted(int(each.version) for each in versions) == [1, 2]
    assert client.get_model_version("digits", "2").run_id == run.info.run_id
    found = load(store, "models:/digits/2", {"x": X.tolist()}, folder=tmp_path)
    same(found, here(made(thresholds=[1.0, 2.0, 1.0])))


def test_no_model_is_logged_where_none_is_wanted(store):
    import mlflow

    run = Told(MLflow("digits", store, log_model=False))
    run.end(model=made())
    client = mlflow.MlflowClient(store)
    assert not client.search_logged_models([client.get_experiment_by_name("digits").experiment_id])


def test_a_model_that_cannot_be_saved_is_marked_and_the_run_ends(store):
    import mlflow

    lock = threading.Lock()
    model = made(collate=lambda inputs, target: (inputs, target) if lock else None)
    run = Told(MLflow("digits", store))
    with pytest.warns(RuntimeWarning, match="MLflow.on_end failed: InvalidInput: collate cannot be saved"):
        run.end(model=model)
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("digits").experiment_id
    assert client.search_runs([experiment])[0].info.status == "FINISHED"
    assert [each.status for each in client.search_logged_models([experiment])] == ["FAILED"]
