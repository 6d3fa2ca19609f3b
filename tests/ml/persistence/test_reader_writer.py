"""Models and estimators on disk: they load unchanged, a failed save loses nothing, and damage raises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn

from sparkdl import TorchModel, TorchRegressor
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence import reader_writer
from sparkdl.ml.persistence.param_values import same
from tests.ml import nets
from tests.ml.persistence.test_export import Choosy, rewritten
from tests.ml.persistence.test_factory import Callback
from tests.sessions import ROOT, frame

SCALED = partial(nets.Scaled, 5, scale=0.5)
HISTORY = [{"epoch": 1, "step": 3, "loss": 0.5}, {"epoch": 2, "step": 6, "loss": 0.25}]
ROW = [([3], "float32")]
CHOOSY = Choosy(3, 1)


class Unpicklable(nets.Line):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def made(**others):
    """A model with a named factory and three inputs."""
    model = TorchModel(factory=SCALED, weights=pack(SCALED()), kind="regressor", **others)
    return model.setInputCols(["a", "b", "c"])


def line(factory, **others):
    """A model of one input; its factory may lack a name."""
    module = factory if isinstance(factory, nn.Module) else factory()
    options = {"weights": pack(module), "kind": "regressor", "signature": ROW, **others}
    return TorchModel(factory=factory, **options)


def scored(model):
    random = np.random.default_rng(5)
    scaled = {"a": random.normal(size=(20, 2, 2)), "b": np.arange(20) % 5, "c": random.normal(size=20)}
    rows = frame(scaled | {"features": random.normal(size=(20, 3))})
    return [row["prediction"] for row in model.transform(rows).select("prediction").collect()]


def files_of(path):
    return {entry.name for entry in path.iterdir()} - {"metadata"}


def test_loaded_model_equals_saved_one(spark, tmp_path):
    path = str(tmp_path / "model")
    model = made(history=HISTORY, report={"seconds": 1.5}, precision="bf16").setPredictionCol("p")
    model.save(path)
    loaded = TorchModel.load(path)
    assert (loaded.uid, loaded.history, loaded.report) == (model.uid, HISTORY, {"seconds": 1.5})
    assert (loaded.getInputCols(), loaded.getPredictionCol()) == (["a", "b", "c"], "p")
    assert loaded.module().scale == 0.5
    torch.testing.assert_close(loaded.module().state_dict(), model.module().state_dict(), rtol=0, atol=0)
    assert scored(loaded.setPredictionCol("prediction")) == scored(made())
    assert files_of(tmp_path / "model") == {"weights.safetensors"}
    (part,) = (tmp_path / "model").glob("metadata/part-*")
    metadata = json.loads(part.read_text())
    assert metadata["class"] == "sparkdl.ml.model.TorchModel"
    expected = {"partial": "tests.ml.nets:Scaled", "args": [{"value": 5}], "kwargs": {"scale": {"value": 0.5}}}
    assert metadata["sparkdl"]["factory"] == expected
    assert (tmp_path / "model/weights.safetensors").read_bytes() == pack(SCALED())


def test_older_copy_stays_until_a_complete_one_replaces_it(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "model")
    made(history=HISTORY).save(path)
    hopeless = line(Unpicklable(), weights=pack(nets.Line()), signature=None)
    for model in (made(), hopeless):
        with pytest.raises(InvalidInput, match=r"exists; use write\(\)\.overwrite\(\)\.save\(path\)"):
            model.save(path)
    with pytest.raises(InvalidInput, match="cannot be pickled, and so not saved"):
        hopeless.write().overwrite().save(path)
    with monkeypatch.context() as patch:
        patch.setattr(reader_writer.DefaultParamsWriter, "saveMetadata", Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            made().write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY
    assert len(scored(TorchModel.load(path))) == 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    made(history=HISTORY[:1]).write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY[:1]


# ---- programs and pickles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory", [nets.Line(), nets.inner(), lambda: nets.mlp(3, outputs=1)], ids=["instance", "local", "lambda"]
)
def test_factory_without_name_is_saved_as_program(spark, tmp_path, factory):
    model, path = line(factory, history=HISTORY), tmp_path / "model"
    model.save(str(path))
    assert files_of(path) == {"program.pt2"}
    loaded = TorchModel.load(str(path))
    assert (loaded.uid, loaded.history) == (model.uid, HISTORY)
    rows = torch.rand(9, 3)
    torch.testing.assert_close(loaded.module()(rows), model.module()(rows))
    loaded.write().overwrite().save(str(path))
    again = TorchModel.load(str(path))
    assert (again._factory, again._weights, again._signature) == (loaded._factory, loaded._weights, ROW)
    exported = tmp_path / "out" / "model.pt2"
    model.exportProgram(str(exported))
    torch.testing.assert_close(torch.export.load(str(exported)).module()(rows), model.module()(rows))
    with pytest.raises(InvalidInput, match="exists; delete it"):
        model.exportProgram(exported.as_uri())


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_program_has_precision_of_its_model(spark, tmp_path, precision):
    wide = precision == "fp64"
    module = nets.Line().double() if wide else nets.Line()
    model = line(module, precision=precision, signature=[([3], "float64" if wide else "float32")], scalar=True)
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert {tensor.dtype for tensor in loaded.module().parameters()} == {torch.float64 if wide else torch.float32}
    assert scored(loaded) == scored(model)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: line(CHOOSY), "Choosy cannot be exported"),
        (lambda: line(nets.Line(), signature=None), "inputs are not known"),
    ],
    ids=["choosy", "no signature"],
)
def test_pickled_architecture_warns_and_needs_trust(spark, tmp_path, model, reason):
    path = str(tmp_path / "model")
    with pytest.warns(UserWarning, match=f"saved as a pickle, .*trust=True.*: .*{reason}"):
        model().save(path)
    assert files_of(tmp_path / "model") == {"model.pkl", "weights.safetensors"}
    with pytest.raises(InvalidInput, match=r"pickled parts.*the model's architecture.*trust=True.*spark.sparkdl.trust"):
        TorchModel.load(path)
    for loaded in (TorchModel.load(path, trust=True), TorchModel.read().trust().load(path)):
        torch.testing.assert_close(loaded.module().state_dict(), model().module().state_dict())
    assert len(scored(loaded)) == 20
    with pytest.raises(InvalidInput, match=reason):
        model().exportProgram(str(tmp_path / "model.pt2"))
    assert not (tmp_path / "model.pt2").exists()


def test_forged_program_needs_trust(spark, tmp_path):
    path = tmp_path / "model/program.pt2"
    line(nets.Line()).save(str(path.parent))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_bytes(rewritten(path.read_bytes(), {"data/weights/model.pt": b"forged"}))
    with pytest.raises(InvalidInput, match=r"can run code .*data/weights/model.pt .*spark.sparkdl.trust"):
        TorchModel.load(str(path.parent))


def test_fit_records_signature(spark, tmp_path):
    rows = frame({"x": np.ones((8, 2, 2)), "kind": np.arange(8) % 3, "price": np.ones(8), "label": np.ones(8)})
    fitted = TorchRegressor(model=nets.Scaled(), inputCols=["x", "kind", "price"], batchSize=4).fit(rows)
    assert fitted._signature == [([2, 2], "float32"), ([], "int64"), ([], "float32")]
    fitted.save(str(tmp_path / "model"))
    assert files_of(tmp_path / "model") == {"program.pt2"}
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.transform(rows).collect() == fitted.transform(rows).collect()


# ---- estimators and pipelines ----------------------------------------------------------------------------------------


def test_values_without_name_are_pickled_and_need_trust(spark, tmp_path):
    path = str(tmp_path / "estimator")
    estimator = TorchRegressor(model=nets.Line(), callbacks=[Callback([1, 2])], batchSize=4)
    estimator.save(path)
    with pytest.raises(InvalidInput, match=r"\['callbacks', 'model'\].*trust=True.*spark.sparkdl.trust"):
        TorchRegressor.load(path)
    loaded = TorchRegressor.load(path, trust=True)
    assert loaded.getCallbacks()[0].seen == [1, 2]
    assert same(loaded.getModel().state_dict(), estimator.getModel().state_dict())
    (tmp_path / "estimator/objects.pkl").unlink()
    with pytest.raises(InvalidInput, match=r"is damaged: objects.pkl cannot be read"):
        TorchRegressor.load(path, trust=True)


def data():
    random = np.random.default_rng(2)
    return frame({name: random.normal(size=12) for name in "abc"} | {"label": random.normal(size=12)})


def assembler():
    return VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")


def predictions(model, data):
    return sorted(row["prediction"] for row in model.transform(data).collect())


SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.ml import Pipeline
from torch import nn
from sparkdl import TorchModel, TorchRegressor
from tests.ml.persistence.test_reader_writer import assembler, data, predictions
from tests.ml.persistence.test_factory import Callback, Doubling
from tests.sessions import session

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(x)

if __name__ == "__main__":
    folder = sys.argv[1]
    with session(folder + "/spark", "local[1]") as spark:
        rows = data()
        pipeline = Pipeline(stages=[assembler(), TorchRegressor(model=Net, batchSize=4)])
        fitted = pipeline.fit(rows)
        pipeline.save(folder + "/pipeline")
        fitted.save(folder + "/fitted")
        named = TorchModel.load(folder + "/named")
        result = predictions(fitted, rows), predictions(named, assembler().transform(rows))
        Path(folder, "predictions").write_text(json.dumps(result))
"""


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_models_travel_to_and_from_another_process(spark, tmp_path):
    """A model with a named factory is loaded there; a model of ``__main__``, and its pipeline, are loaded here."""
    named = TorchModel(factory=nets.Line, weights=pack(nets.Line()), kind="regressor")
    named.save(str(tmp_path / "named"))
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "spark").mkdir()
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    of_main, of_named = json.loads((tmp_path / "predictions").read_text())
    rows = data()
    np.testing.assert_allclose(predictions(PipelineModel.load(str(tmp_path / "fitted")), rows), of_main, rtol=1e-6)
    np.testing.assert_allclose(predictions(named, assembler().transform(rows)), of_named, rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"pickled parts.*\['model'\]"):
        Pipeline.load(str(tmp_path / "pipeline"))
    spark.conf.set("spark.sparkdl.trust", "true")
    try:
        again = Pipeline.load(str(tmp_path / "pipeline"))
    finally:
        spark.conf.unset("spark.sparkdl.trust")
    np.testing.assert_allclose(predictions(again.fit(rows), rows), of_main, rtol=1e-6)


# ---- damaged and foreign models --------------------------------------------------------------------------------------


def edited(path, **changes):
    """Change the fields in the metadata of a saved model."""
    for part in path.glob("metadata/part-*"):
        metadata = json.loads(part.read_text())
        metadata["sparkdl"] |= changes
        part.write_text(json.dumps(metadata))
    for checksum in path.glob("metadata/.*.crc"):
        checksum.unlink()


def test_unknown_or_forged_metadata_raises(spark, tmp_path):
    saved, path = tmp_path / "saved", tmp_path / "model"
    made().save(str(saved))
    with pytest.raises(InvalidInput, match=r"holds a sparkdl.*\.TorchModel; expected a sparkdl TorchRegressor"):
        TorchRegressor.load(str(saved))
    for changes, message in [
        ({"format": 99}, r"written by a newer sparkdl \(format 99\)"),
        ({"format": None}, "has the format None; expected 4"),
        ({"format": 1}, r"written by an older sparkdl \(format 1\)"),
        ({"architecture": "stone"}, "is damaged: .*stone"),
        ({"factory": {"partial": "tests.ml.nets:Line"}}, "is damaged: .*partial"),
        ({"factory": {"value": 5}}, "is damaged: .*the factory is 5"),
        ({"objects": {"collate": {"name": "os:system"}}}, "names os.system; expected nothing of Python's own"),
        ({"objects": {"collate": {"name": "torch:load"}}}, "names torch.load, which is "),
        ({"factory": {"partial": "torch:load", "args": [{"value": "x"}], "kwargs": {}}}, "or a subclass of Module"),
        ({"factory": {"name": "tests.ml.gone:Net"}}, "tests.ml.gone.Net, which cannot be imported"),
    ]:
        shutil.copytree(saved, path)
        edited(path, **changes)
        with pytest.raises(InvalidInput, match=message):
            TorchModel.load(str(path))
        shutil.rmtree(path)


@pytest.mark.parametrize("name", ["weights.safetensors", "program.pt2"])
def test_damaged_model_raises(spark, tmp_path, name):
    saved, path = tmp_path / "saved", tmp_path / "model"
    line(nets.Line if name == "weights.safetensors" else nets.Line()).save(str(saved))

    def break_metadata():
        for part in path.glob("metadata/*part-*"):
            part.unlink() if part.name.startswith(".") else part.write_text("{half")

    for damage in (
        (path / name).unlink,
        lambda: (path / name).write_bytes((path / name).read_bytes()[:-10]),
        break_metadata,
        lambda: shutil.rmtree(path),
    ):
        shutil.copytree(saved, path)
        damage()
        with pytest.raises(InvalidInput, match=r"damaged|cannot be loaded as a TorchModel"):
            TorchModel.load(str(path))
        shutil.rmtree(path, ignore_errors=True)
