"""Models without Spark: saved and loaded in folders, and asked with data of this process."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.inference.local import InProcess, input_types, output_types
from sparkdl.ml.model import TorchModel
from sparkdl.ml.persistence.local_folder import read_folder, write_folder
from tests.ml import nets, typed_nets
from tests.sessions import ROOT, frame

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def made(factory=nets.scores, kind="classifier", signature=(([3], "float32"),), **params):
    model = TorchModel(factory=factory, weights=pack(factory()), kind=kind, signature=list(signature))
    return model._set(**{"inputCols": ["x"]} | params)


def expected(factory=nets.scores, *inputs) -> np.ndarray:
    with torch.inference_mode():
        return factory().eval()(*(torch.from_numpy(each) for each in inputs or (X,))).numpy()


def columns(model: TorchModel, data: object) -> dict[str, np.ndarray]:
    found = InProcess(model).predict(data)
    return {name: np.stack(list(found[name])) for name in found}


# ---- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        X,
        X.astype(np.float64),
        X.tolist(),
        np.asfortranarray(X),
        {"x": X},
        pd.DataFrame({"more": range(len(X)), "x": list(X)}),
        pd.DataFrame({"x": X.tolist()}),
    ],
    ids=["array", "doubles", "lists", "columns first", "mapping", "frame of arrays", "frame of lists"],
)
def test_one_input_is_taken_in_whatever_form(data):
    found = columns(made(), data)
    scores = expected()
    assert list(found) == ["prediction", "probability", "rawPrediction"]
    np.testing.assert_array_equal(found["prediction"], scores.argmax(1))
    np.testing.assert_allclose(found["rawPrediction"], scores, rtol=1e-6)
    np.testing.assert_allclose(found["probability"].sum(1), 1, rtol=1e-6)


def test_several_inputs_are_taken_by_their_names():
    arrays = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 3, 2),
        "kind": np.array([0, 1, 2, 3], np.int32),
        "price": np.array([0.5, 1.5, 2.5, 3.5]),
    }
    model = made(nets.Scaled, "regressor")._set(inputCols=["x", "kind", "price"])
    wanted = expected(nets.Scaled, arrays["x"], arrays["kind"].astype(np.int64), arrays["price"].astype(np.float32))
    data = pd.DataFrame({name: list(values) for name, values in arrays.items()}, index=[7, 5, 3, 1])
    found = InProcess(model).predict(data)
    np.testing.assert_allclose(found["prediction"], wanted, rtol=1e-6)
    assert list(found.index) == [7, 5, 3, 1]
    np.testing.assert_allclose(columns(model, arrays)["prediction"], wanted, rtol=1e-6)


def test_lists_of_several_lengths_and_bytes_are_taken_as_the_columns_say():
    bag = made(typed_nets.Bag, "regressor", columnSpecs=[InputColumn("x", ragged="offsets")])
    tokens = [[1, 2], [], [3, 4, 5]]
    for data in (tokens, pd.DataFrame({"x": tokens}), pd.DataFrame({"x": [np.array(each, int) for each in tokens]})):
        np.testing.assert_allclose(columns(bag, data)["prediction"], [0.15, 0, 0.6], rtol=1e-6)
    picture = made(typed_nets.Picture, "regressor", columnSpecs=[InputColumn("x", "uint8", (4, 3))])
    bytes_ = pd.DataFrame({"x": [bytes(range(12)), bytes(12)]})
    np.testing.assert_allclose(columns(picture, bytes_)["prediction"], [5.06, 0], rtol=1e-6)


def test_an_array_of_outputs_is_an_array_and_a_single_one_a_number():
    assert columns(made(nets.Autoencoder, "estimator"), X)["prediction"].shape == (20, 3)
    assert columns(made(nets.Line, "estimator"), X)["prediction"].shape == (20,)


def test_names_and_columns_that_are_turned_off_are_those_of_transform():
    model = made(predictionCol="digit", rawPredictionCol="", probabilityCol="", thresholds=[1.0, 1e9, 1e9])
    assert {name: set(values) for name, values in columns(model, X).items()} == {"digit": {0.0}}


def test_numbers_that_are_missing_are_nan_and_not_refused():
    rows = X.copy()
    rows[0] = np.nan
    assert np.isnan(columns(made(), rows)["prediction"]).tolist() == [True] + [False] * 19
    scalars = pd.DataFrame({"x": [1.0, np.nan]})
    assert np.isnan(columns(made(nn.PReLU, "regressor"), scalars)["prediction"]).tolist() == [False, True]


def test_no_rows_have_no_predictions():
    found = InProcess(made()).predict(np.empty((0, 3), np.float32))
    assert (list(found), len(found)) == (["prediction", "probability", "rawPrediction"], 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.DataFrame({"y": [1.0]}), "there is no 'x'; the data has 'y'"),
        ({"y": X}, "there is no 'x'"),
        (pd.DataFrame({"x": ["a", "b"]}), "column 'x' has type string"),
        (pd.DataFrame({"x": [[1.0, 2.0, 3.0], None]}), "null"),
        (pd.DataFrame({"x": [None, None]}), "no values"),
        (np.float32(1.0), "cannot become a tensor|expected an array"),
        ([[1.0, 2.0, 3.0], [1.0]], "length"),
    ],
)
def test_what_cannot_be_an_input_is_refused(data, message):
    with pytest.raises(InvalidInput, match=message):
        InProcess(made()).predict(data)


def test_inputs_that_do_not_fit_together_are_refused():
    model = made(nets.Scaled, "regressor")._set(inputCols=["x", "kind", "price"])
    with pytest.raises(InvalidInput, match="expected a DataFrame with these columns, or a mapping of arrays"):
        InProcess(model).predict(X)
    with pytest.raises(InvalidInput, match=r"the inputs have \[4, 3, 4\] rows"):
        InProcess(model).predict({"x": np.zeros((4, 3, 2)), "kind": np.zeros(3, int), "price": np.zeros(4)})


@pytest.mark.parametrize("kind", ["classifier", "regressor", "estimator"])
def test_the_numbers_are_those_of_transform(spark, kind):
    model = made({"classifier": nets.scores, "regressor": nets.Line, "estimator": nets.Autoencoder}[kind], kind)
    # One partition gives both the same batch, for sums of float32 depend on its size.
    rows = model.transform(frame({"x": X}).coalesce(1)).toPandas()
    for name, values in columns(model, X).items():
        there = np.stack([each.toArray() if hasattr(each, "toArray") else np.asarray(each) for each in rows[name]])
        np.testing.assert_allclose(values, there, rtol=1e-6)


# ---- what is known of inputs and outputs -----------------------------------------------------------------------------


def test_inputs_are_known_where_nothing_changes_them_on_their_way():
    assert input_types(made()) == [("x", [3], "float32")]
    assert input_types(made(columnSpecs=[InputColumn("x", dtype="float32")])) == [("x", [3], "float32")]
    assert input_types(made(columnSpecs=[InputColumn("x", "float32", (3,))])) is None
    assert input_types(made(columnSpecs=[InputColumn("x", ragged="padded")])) is None
    assert input_types(made(collate=lambda inputs, target: (inputs, target))) is None
    assert input_types(TorchModel(factory=nets.scores, weights=b"")) is None


def test_outputs_are_known():
    scores = [("probability", "float", True), ("rawPrediction", "float", True)]
    assert output_types(made()) == [("prediction", "double", False), *scores]
    assert output_types(made(probabilityCol="")) == [("prediction", "double", False), scores[1]]
    assert output_types(made(nets.Autoencoder, "estimator")) == [("prediction", "float", True)]


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_model_loads_in_a_process_that_has_no_java(tmp_path):
    write_folder(made(thresholds=[1.0, 2.0, 3.0]), str(tmp_path / "model"))
    script = """
import json, sys
import numpy as np
from sparkdl.ml.persistence.local_folder import read_folder
from sparkdl.ml.inference.local import InProcess
model = read_folder(sys.argv[1])
found = InProcess(model).predict(np.array(json.loads(sys.argv[2])))
from pyspark import SparkContext
assert SparkContext._gateway is None
print(json.dumps([model.uid, model.getThresholds(), found["prediction"].tolist()]))
"""
    argv = [sys.executable, "-c", script, str(tmp_path / "model"), json.dumps(X.tolist())]
    environment = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    uid, thresholds, predicted = json.loads(done.stdout)
    assert thresholds == [1.0, 2.0, 3.0]
    assert predicted == columns(made(thresholds=thresholds), X)["prediction"].tolist()
    assert uid.startswith("TorchModel")


def test_a_folder_is_what_spark_reads(spark, tmp_path):
    model = made(thresholds=[1.0, 2.0, 3.0])
    write_folder(model, str(tmp_path / "model"))
    loaded = TorchModel.load(f"file://{tmp_path}/model")
    assert (loaded.uid, loaded.getThresholds()) == (model.uid, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(columns(loaded, X)["prediction"], columns(model, X)["prediction"])


def test_a_factory_that_cannot_be_imported_is_saved_as_a_program(tmp_path):
    write_folder(made(nets.inner()), str(tmp_path / "model"))
    assert {each.name for each in (tmp_path / "model").iterdir()} == {"metadata", "program.pt2"}
    loaded = read_folder(str(tmp_path / "model"))
    np.testing.assert_allclose(columns(loaded, X)["rawPrediction"], 2 * expected(), rtol=1e-5)


def test_what_is_pickled_is_loaded_only_with_trust(tmp_path):
    model = made(collate=lambda inputs, target: (tuple(2 * each for each in inputs), target))
    write_folder(model, str(tmp_path / "model"))
    with pytest.raises(InvalidInput, match="has pickled parts"):
        read_folder(str(tmp_path / "model"))
    loaded = read_folder(str(tmp_path / "model"), trust=True)
    np.testing.assert_array_equal(columns(loaded, X)["prediction"], columns(model, X)["prediction"])


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be loaded as a TorchModel"):
        read_folder(str(tmp_path))
