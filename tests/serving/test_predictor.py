"""Predictions without Spark."""

from __future__ import annotations

import random
import subprocess
import venv
from decimal import Decimal
from pathlib import Path

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from sparkdl import InputColumn, InvalidInput, TorchModel
from sparkdl.io.serialization import pack_state
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.reader_writer import Writer
from sparkdl.serving.loading import load_predictor
from sparkdl.training.rng import random_state
from tests.ml import nets
from tests.ml.persistence.test_reader_writer import edited

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def made(factory=nets.scores, kind="classifier", signature=(([3], "float32"),), **params):
    model = TorchModel(factory=factory, weights=pack(factory()), kind=kind, signature=signature and list(signature))
    return model._set(**{"inputCols": ["x"]} | params)


SCALED = [("x", [3, 2], "float32"), ("kind", [], "int64"), ("price", [], "float32")]


def scaled():
    signature = [(shape, dtype) for _, shape, dtype in SCALED]
    return made(nets.Scaled, "regressor", signature)._set(inputCols=["x", "kind", "price"])


def expected(factory=nets.scores, *inputs) -> np.ndarray:
    with torch.inference_mode():
        return factory().eval()(*(torch.from_numpy(values) for values in inputs or (X,))).numpy()


def columns(model: TorchModel, data: object) -> dict[str, np.ndarray]:
    result = model.predict(data)
    return {name: np.stack(list(result[name])) for name in result}


FORMS = {
    "array": X,
    "doubles": X.astype(np.float64),
    "lists": X.tolist(),
    "columns first": np.asfortranarray(X),
    "mapping": {"x": X},
    "frame of arrays": pd.DataFrame({"more": range(len(X)), "x": list(X)}),
    "frame of lists": pd.DataFrame({"x": X.tolist()}),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_forms_of_one_input(data):
    result, scores = columns(made(), data), expected()
    assert list(result) == ["prediction", "probability", "rawPrediction"]
    np.testing.assert_array_equal(result["prediction"], scores.argmax(1))
    np.testing.assert_allclose(result["rawPrediction"], scores, rtol=1e-6)
    np.testing.assert_allclose(result["probability"].sum(1), 1, rtol=1e-6)


def test_several_inputs_by_name():
    x, price = np.arange(24, dtype=np.float32).reshape(4, 3, 2), np.arange(4) + 0.5
    arrays = {"x": x, "kind": np.arange(4, dtype=np.int32), "price": price}
    wanted = expected(nets.Scaled, x, np.arange(4), price.astype(np.float32))
    data = pd.DataFrame({name: list(values) for name, values in arrays.items()}, index=[7, 5, 3, 1])
    result = scaled().predict(data)
    np.testing.assert_allclose(result["prediction"], wanted, rtol=1e-6)
    assert list(result.index) == [7, 5, 3, 1]
    np.testing.assert_allclose(columns(scaled(), arrays)["prediction"], wanted, rtol=1e-6)


def test_an_arrow_table_becomes_an_arrow_table():
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3)
    chunks = pa.chunked_array([lists[:5], lists[5:]])
    result, wanted = made().predict(pa.table({"more": pa.nulls(20), "x": chunks})), made().predict(X)
    assert result.column_names == ["prediction", "probability", "rawPrediction"]
    assert result.schema.field("probability").type.value_type == pa.float32()
    for name in wanted:
        np.testing.assert_array_equal(np.stack(result[name].to_numpy()), np.stack(wanted[name]))
    batch = pa.record_batch({"x": lists.slice(3, 2)})
    np.testing.assert_array_equal(made().predict(batch)["prediction"], wanted["prediction"][3:5])
    with pytest.raises(InvalidInput, match="no 'x'; it has 'y'"):
        made().predict(pa.table({"y": lists}))


def test_ragged_and_binary_inputs():
    bag = made(nets.Bag, "regressor", columnSpecs=[InputColumn("x", ragged="offsets")])
    tokens = [[1, 2], [], [3, 4, 5]]
    for data in (tokens, pd.DataFrame({"x": tokens}), pd.DataFrame({"x": [np.array(row, int) for row in tokens]})):
        np.testing.assert_allclose(columns(bag, data)["prediction"], [0.15, 0, 0.6], rtol=1e-6)
    picture = made(nets.Picture, "regressor", columnSpecs=[InputColumn("x", "uint8", (4, 3))])
    images = pd.DataFrame({"x": [bytes(range(12)), bytes(12)]})
    np.testing.assert_allclose(columns(picture, images)["prediction"], [5.06, 0], rtol=1e-6)


def test_names_missing_numbers_and_no_rows():
    model = made(predictionCol="digit", rawPredictionCol="", probabilityCol="", thresholds=[1.0, 1e9, 1e9])
    assert {name: set(values) for name, values in columns(model, X).items()} == {"digit": {0.0}}
    rows = X.copy()
    rows[0] = np.nan
    assert np.isnan(columns(made(), rows)["prediction"]).tolist() == [True] + [False] * 19
    scalars = pd.DataFrame({"x": [1.0, np.nan]})
    assert np.isnan(columns(made(nn.PReLU, "regressor"), scalars)["prediction"]).tolist() == [False, True]
    table = pa.table({"x": pa.array([], pa.list_(pa.float64()))})
    for none in (X[:0], pd.DataFrame({"x": list(X)})[:0], {"x": []}, [], table):
        assert len(made().predict(none)["prediction"]) == 0


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (made, pd.DataFrame({"y": [1.0]}), "no 'x'; .* 'y'"),
        (made, pd.DataFrame({"x": ["a", "b"]}), "column 'x' has type string"),
        (made, pd.DataFrame({"x": [[1.0, 2.0, 3.0], None]}), "null"),
        (made, pd.DataFrame({"x": [None, None]}), "has 2 nulls in 2 rows"),
        *((made, {"x": pd.Series([1, None], dtype=kind)}, "has 1 nulls in 2 rows") for kind in ("Int64", "boolean")),
        *((made, {"x": pd.Series([1, null], dtype=object)}, "has 1 nulls in 2 rows") for null in (pd.NA, pd.NaT)),
        (made, np.float32(1.0), "column 'x' cannot be read"),
        (made, np.zeros((4, 5), int), r"cannot read 'x', whose rows are float32 \[5\]; expected float32 \[3\], as in"),
        (lambda: made(signature=None), np.zeros((4, 3), int), r"cannot read 'x', whose rows are int64 \[3\]; expected"),
        (lambda: made(signature=None, assembleInputs=True), X[:, :2], r"whose rows are float32 \[2\]; expected"),
        (scaled, {"x": np.zeros((1, 3, 2)), "kind": [0.5], "price": [1]}, "'kind' has 1 values that are not whole"),
        (made, [[1.0, 2.0, 3.0], [1.0]], "length"),
        (scaled, X, "expected a DataFrame or a Table with 'x', 'kind', 'price', or a mapping"),
        (scaled, {"x": np.zeros((4, 3, 2)), "kind": np.zeros(3, int), "price": np.zeros(4)}, r"\[4, 3, 4\] rows"),
    ],
)
def test_invalid_inputs_raise(make, data, message):
    with pytest.raises(InvalidInput, match=message):
        make().predict(data)


class Drawing(nn.Module):
    """Its inputs as floats, integers modulo 2^20; it raises for other types, and draws random numbers."""

    types = ("float32", "float32", "int64", "float32", "int64", "float64")

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.rand(()).ceil() + 0 * random.random() * np.random.random())

    def forward(self, *inputs: Tensor) -> Tensor:
        assert [f"torch.{kind}" for kind in self.types] == [str(x.dtype) for x in inputs]
        drawn = 0 * torch.rand(1) * random.random() * np.random.random()
        return drawn + self.one * torch.stack([(x if x.is_floating_point() else x % 2**20).float() for x in inputs], 1)


def test_columns_of_other_types_are_those_of_transform_and_random_numbers_stay(spark):
    kinds = "a decimal(20,10), b bigint, c double, d boolean, e decimal(18,0), f double"
    rows = [(Decimal("16777217.0000000001"), 2**24 + 1, 2.0**40 + 1, True, Decimal(2**53 + 1), 0.1)]
    rows = spark.createDataFrame([*rows, (Decimal("0.1"), -1, 3.0, False, Decimal(5), 1e-40)], kinds).coalesce(1)
    model = made(Drawing, "estimator", [([], kind) for kind in Drawing.types], inputCols=rows.columns)
    model._set(columnSpecs=[InputColumn("f", "float64")])
    expected = np.array([row["prediction"] for row in model.transform(rows).collect()], np.float32)
    frame, before = rows.toPandas(), pack_state(random_state())
    nullable = frame.astype({"b": "Int64", "c": "Float64", "d": "boolean", "f": "float64[pyarrow]"})
    for data in (frame, nullable, rows.toArrow(), frame.to_dict("records")):
        assert np.stack(model.predict(data)["prediction"].to_numpy()).tobytes() == expected.tobytes()
        assert pack_state(random_state()) == before


def test_types_of_inputs_and_outputs():
    assert made().predictor().input_types == [("x", [3], "float32")]
    assert scaled().predictor().input_types == SCALED
    assert made(columnSpecs=[InputColumn("x", dtype="float32")]).predictor().input_types == [("x", [3], "float32")]
    assert made(columnSpecs=[InputColumn("x", "float32", (3,))]).predictor().input_types is None
    assert made(columnSpecs=[InputColumn("x", ragged="padded")]).predictor().input_types is None
    assert made(collate=lambda inputs, target: (inputs, target)).predictor().input_types is None
    assert TorchModel(factory=nets.scores, weights=b"").predictor().input_types is None
    scores = [("probability", "float", True), ("rawPrediction", "float", True)]
    assert made().predictor().output_types == [("prediction", "double", False), *scores]
    assert made(probabilityCol="").predictor().output_types == [("prediction", "double", False), scores[1]]
    assert made(nets.Autoencoder, "estimator").predictor().output_types == [("prediction", "float", True)]


def test_folders_are_those_of_spark(spark, tmp_path):
    model = made(thresholds=[1.0, 2.0, 3.0])
    Writer(model).saveImpl(str(tmp_path / "model"))
    loaded = TorchModel.load(f"file://{tmp_path}/model")
    assert (loaded.uid, loaded.getThresholds()) == (model.uid, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(columns(loaded, X)["prediction"], columns(model, X)["prediction"])


def test_a_pickled_model_has_no_module_of_predict():
    model = made()
    before = len(cloudpickle.dumps(model))
    wanted = model.predict(X)
    assert len(cloudpickle.dumps(model)) < before + 200
    pd.testing.assert_frame_equal(cloudpickle.loads(cloudpickle.dumps(model)).predict(X), wanted)
    pd.testing.assert_frame_equal(model.copy().predict(X), wanted)
    assert list(model.setProbabilityCol("").predict(X)) == ["prediction", "rawPrediction"]  # also after a prediction


def test_a_description_of_another_label_column_is_ignored():
    model = made(columnSpecs=[InputColumn("mask", shape=(3, 3))], labelCol="truth")
    assert len(model.predict(X)) == len(X)


WITHOUT_PYSPARK = """
import importlib.util
import sys

import numpy as np

import sparkdl

predictor = sparkdl.load_predictor(sys.argv[1], modules=["tests.ml"])
x = np.load(sys.argv[2])
np.save(sys.argv[3], np.stack(list(predictor.predict(x)["probability"])))
print(predictor.inputs, predictor.outputs, importlib.util.find_spec("pyspark"))
"""


def environment_without_pyspark(folder: Path) -> Path:
    """The Python of a new virtual environment, in which all packages of this one but pyspark are installed."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in Path(np.__file__).parents[1].iterdir():
        if not entry.name.startswith(("pyspark", "py4j")):
            (site / entry.name).symlink_to(entry)
    return folder / "bin/python"


def test_a_saved_model_predicts_without_pyspark(spark, tmp_path):
    model = made(thresholds=[1.0, 2.0, 3.0], rawPredictionCol="")
    wanted = np.stack(list(model.predict(X)["probability"]))
    model.clear(model.inputCols)
    model._set(featuresCol="x").save(str(tmp_path / "model"))
    np.save(tmp_path / "x.npy", X)
    paths = [str(tmp_path / name) for name in ("model", "x.npy", "out.npy")]
    command = [environment_without_pyspark(tmp_path / "venv"), "-c", WITHOUT_PYSPARK, *paths]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    assert printed == "['x'] ['prediction', 'probability'] None\n"
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


def test_only_models_and_pipelines_have_a_predictor(tmp_path):
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "part-00000").write_text('{"class": "some.Kind", "uid": "u", "paramMap": {}}')
    with pytest.raises(InvalidInput, match=r"holds a some\.Kind; expected a TorchModel, or a PipelineModel"):
        load_predictor(str(tmp_path))


def test_forged_folders_call_nothing(tmp_path, monkeypatch):
    """Whoever writes the folder chooses names and arguments; installed modules such as IPython's run commands."""
    (tmp_path / "pexpect.py").write_text(f"def run(path):\n    open(path, 'w')\n\nrun({str(tmp_path / 'pwned')!r})")
    monkeypatch.syspath_prepend(tmp_path)
    Writer(made(nets.Line, "regressor")).saveImpl(str(tmp_path / "model"))
    for name in ("pexpect:run", "tests.ml.nets:mlp", "tests.ml.nets:torch.load"):
        forged = {"partial": name, "args": [{"value": str(tmp_path / "pwned")}], "kwargs": {}}
        edited(tmp_path / "model", factory=forged)
        with pytest.raises(InvalidInput, match="a saved value names"):
            load_predictor(tmp_path / "model")
    assert not (tmp_path / "pwned").exists()
    Writer(made()).saveImpl(str(tmp_path / "function"))
    with pytest.raises(InvalidInput, match=r"load_predictor\(path, modules=\['tests.ml.nets'\]\)"):
        load_predictor(tmp_path / "function")
    assert len(load_predictor(tmp_path / "function", modules=["tests.ml.nets"]).predict(X)) == len(X)


def test_pickled_folders_need_trust(tmp_path):
    model = made(nets.Line, "regressor", collate=lambda inputs, target: ((2 * inputs[0],), target))
    Writer(model).saveImpl(str(tmp_path / "model"))
    with pytest.raises(InvalidInput, match="has pickled parts"):
        load_predictor(str(tmp_path / "model"))
    loaded = load_predictor(str(tmp_path / "model"), trust=True)
    np.testing.assert_array_equal(loaded.predict(X)["prediction"], columns(model, X)["prediction"])
