"""Models on disk: what was saved is what is loaded, elsewhere too, and nothing is lost to a save that fails."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler

from sparkdl import TorchModel
from sparkdl.errors import InvalidInput
from sparkdl.weights import pack
from tests.ml import nets
from tests.sessions import frame
from tests.spark import drivers

SCALED = partial(nets.Scaled, 5, scale=0.5)
HISTORY = [{"epoch": 1, "step": 3, "loss": 0.5}, {"epoch": 2, "step": 6, "loss": 0.25}]


def made(factory=SCALED, **others):
    return TorchModel(factory=factory, weights=pack(factory()), kind="regressor", **others).setInputCols(
        ["a", "b", "c"]
    )


def data():
    random = np.random.default_rng(3)
    return frame({"a": random.normal(size=(20, 2, 2)), "b": np.arange(20) % 5, "c": random.normal(size=20)})


def predictions(model):
    return [row["prediction"] for row in model.transform(data()).select("prediction").collect()]


def test_what_was_saved_is_loaded(spark, tmp_path):
    model = made(history=HISTORY, report={"seconds": 1.5}, precision="bf16").setPredictionCol("p")
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert (loaded.uid, loaded.history, loaded.report) == (model.uid, HISTORY, {"seconds": 1.5})
    assert (loaded.getInputCols(), loaded.getPredictionCol()) == (["a", "b", "c"], "p")
    assert loaded.module().scale == 0.5
    torch.testing.assert_close(loaded.module().state_dict(), model.module().state_dict(), rtol=0, atol=0)
    assert predictions(loaded.setPredictionCol("prediction")) == predictions(made())


def test_a_saved_model_is_json_and_safetensors(spark, tmp_path):
    made().save(str(tmp_path / "model"))
    files = {str(path.relative_to(tmp_path / "model")) for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert {"weights.safetensors", "metadata/_SUCCESS"} <= files
    (part,) = (tmp_path / "model").glob("metadata/part-*")
    metadata = json.loads(part.read_text())
    assert metadata["class"] == "sparkdl.ml.model.TorchModel"
    assert metadata["sparkdl"]["factory"] == {"path": "tests.ml.nets:Scaled", "args": [5], "kwargs": {"scale": 0.5}}
    assert (tmp_path / "model/weights.safetensors").read_bytes() == pack(SCALED())


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_another_process_loads_it(spark, driver, tmp_path):
    made().save(str(tmp_path / "model"))
    data().write.parquet(str(tmp_path / "data"))
    found = driver(drivers.load_and_predict, tmp_path, timeout=300).result
    read = made().transform(spark.read.parquet(str(tmp_path / "data")))
    assert sorted(found) == sorted(row["prediction"] for row in read.collect())


def test_what_is_there_stays_unless_it_is_to_be_replaced(spark, tmp_path):
    path = str(tmp_path / "model")
    made(history=HISTORY).save(path)
    with pytest.raises(InvalidInput, match=r"exists; use write\(\)\.overwrite\(\)\.save\(path\)"):
        made().save(path)
    assert TorchModel.load(path).history == HISTORY
    made(history=HISTORY[:1]).write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY[:1]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: nets.mlp(3, outputs=1), "cannot be imported by another program"),
        (partial(nets.mlp, 3, outputs=torch.tensor(1)), "not plain JSON"),
    ],
    ids=["lambda", "arguments"],
)
def test_a_model_that_cannot_be_saved_replaces_nothing(spark, tmp_path, factory, message):
    path = str(tmp_path / "model")
    made(history=HISTORY).save(path)
    hopeless = TorchModel(factory=factory, weights=pack(nets.Line()), kind="regressor")
    with pytest.raises(InvalidInput, match=message):
        hopeless.write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY
    assert len(predictions(TorchModel.load(path))) == 20
    with pytest.raises(InvalidInput, match=message):
        hopeless.save(str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_an_instance_cannot_be_saved_yet(spark, tmp_path):
    instance = nets.Line()
    model = TorchModel(factory=instance, weights=pack(instance), kind="regressor")
    with pytest.raises(InvalidInput, match="the model is an instance of Line"):
        model.save(str(tmp_path / "model"))


def test_what_is_no_model_is_not_loaded(spark, tmp_path):
    VectorAssembler(inputCols=["a"]).save(str(tmp_path / "assembler"))
    with pytest.raises(InvalidInput, match=r"holds a .*VectorAssembler; expected a sparkdl TorchModel"):
        TorchModel.load(str(tmp_path / "assembler"))


def edited(path, **changes):
    """Change what the metadata of a saved model says of it."""
    for part in path.glob("metadata/part-*"):
        metadata = json.loads(part.read_text())
        metadata["sparkdl"] |= changes
        part.write_text(json.dumps(metadata))
    for checksum in path.glob("metadata/.*.crc"):
        checksum.unlink()
    return str(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, r"was written by a newer sparkdl \(format 99\)"),
        ({"factory": {"path": "tests.ml.gone:Net", "args": [], "kwargs": {}}}, "tests.ml.gone.Net cannot be imported"),
    ],
)
def test_what_cannot_be_understood_here_is_not_loaded(spark, tmp_path, changes, message):
    made().save(str(tmp_path / "model"))
    with pytest.raises(InvalidInput, match=message):
        TorchModel.load(edited(tmp_path / "model", **changes))


def test_a_pipeline_is_saved_with_the_model_in_it(spark, tmp_path):
    line = TorchModel(factory=nets.Line, weights=pack(nets.Line()), kind="regressor", history=HISTORY)
    numbers = frame({name: np.arange(5) / 5 for name in "abc"})
    fitted = Pipeline(stages=[VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"), line]).fit(numbers)
    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert loaded.stages[1].history == HISTORY
    assert loaded.transform(numbers).collect() == fitted.transform(numbers).collect()
