"""Models and estimators on disk: they load unchanged, a failed save loses nothing, and damage raises."""

import copy
import json
import pickle
import shutil
import threading
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from torch import nn

from sparkdl import Bagging, EnsembleModel, InvalidInput, TorchModel, TorchRegressor
from sparkdl.io.weights import pack
from sparkdl.ml.persistence import metadata_files
from sparkdl.ml.persistence.metadata_files import escaped
from sparkdl.ml.persistence.reader_writer import modules_of
from sparkdl.serving.format.param_values import same
from tests.ml import nets
from tests.serving.format.test_export import Choosy, rewritten
from tests.serving.format.test_factory import Callback, by_row
from tests.sessions import conf

SCALED = partial(nets.Scaled, 5, scale=0.5)
ODD = "a b[1]{c,d}*?%20#\u00e9^\\"
"""The name of a folder; Spark's readers take it for a pattern."""
HISTORY = [{"epoch": 1, "step": 3, "loss": 0.5}, {"epoch": 2, "step": 6, "loss": 0.25}]
ROW = [([3], "float32")]
CHOOSY = Choosy(3, 1)


def made(**others):
    """A model with a named factory and three inputs."""
    model = TorchModel(factory=SCALED, weights=pack(SCALED()), kind="regressor", **others)
    return model.setInputCols(["a", "b", "c"])


def line(factory, **others):
    """A model of one input; its factory may lack a name."""
    module = factory if isinstance(factory, nn.Module) else factory()
    options = {"weights": pack(module), "kind": "regressor", "signature": ROW, **others}
    return TorchModel(factory=factory, **options)


SCALED_ROWS = {"a": np.ones((20, 2, 2)), "b": np.arange(20) % 4, "c": np.arange(20.0)}
ROWS = {"features": np.random.default_rng(5).normal(size=(20, 3)).astype(np.float32)}


def scored(model):
    return model.predict(SCALED_ROWS if len(model.predictor().inputs) == 3 else ROWS)["prediction"].tolist()


def files_of(path):
    return {entry.name for entry in path.iterdir()} - {"metadata"}


def test_loaded_model_equals_saved_one(spark, tmp_path):
    path = tmp_path / ODD
    model = made(history=HISTORY, report={"seconds": 1.5}, precision="bf16").setPredictionCol("p")
    model.save(path)
    loaded = TorchModel.load(path)
    assert (loaded.uid, loaded.history, loaded.report) == (model.uid, HISTORY, {"seconds": 1.5})
    assert Path(loaded.report.html(str(tmp_path / "report.html"))).stat().st_size > 0
    assert (loaded.getInputCols(), loaded.getPredictionCol()) == (["a", "b", "c"], "p")
    assert loaded.module().scale == 0.5
    torch.testing.assert_close(loaded.module().state_dict(), model.module().state_dict(), rtol=0, atol=0)
    assert scored(loaded.setPredictionCol("prediction")) == scored(made())
    assert files_of(path) == {"weights.safetensors"}
    (part,) = path.glob("metadata/part-*")
    metadata = json.loads(part.read_text())
    assert metadata["class"] == "sparkdl.ml.model.TorchModel"
    expected = {"partial": "tests.ml.nets:Scaled", "args": [{"value": 5}], "kwargs": {"scale": {"value": 0.5}}}
    assert metadata["sparkdl"]["factory"] == expected
    assert (path / "weights.safetensors").read_bytes() == pack(SCALED())


def test_older_copy_stays_until_a_complete_one_replaces_it(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "model")
    made(history=HISTORY).save(path)
    lock = threading.Lock()  # which has no pickle
    hopeless = line(lambda: lock and nets.Line(), signature=None)
    for model in (made(), hopeless):
        with pytest.raises(InvalidInput, match=r"exists; use write\(\)\.overwrite\(\)\.save\(path\)"):
            model.save(path)
    with pytest.raises(InvalidInput, match="cannot be pickled, and so not saved"):
        hopeless.write().overwrite().save(path)
    with monkeypatch.context() as patch:
        patch.setattr(metadata_files, "write", Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            made().write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY
    assert len(scored(TorchModel.load(path))) == 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    made(history=HISTORY[:1]).write().overwrite().save(path)
    assert TorchModel.load(path).history == HISTORY[:1]


# ---- programs and pickles --------------------------------------------------------------------------------------------


def test_factory_without_name_is_saved_as_program(spark, tmp_path):
    model, path = line(lambda: nets.mlp(3, outputs=1), history=HISTORY), tmp_path / "model"
    model.save(str(path))
    assert files_of(path) == {"program.pt2"}
    loaded = TorchModel.load(str(path))
    assert (loaded.uid, loaded.history) == (model.uid, HISTORY)
    rows = torch.rand(9, 3)
    torch.testing.assert_close(loaded.module()(rows), model.module()(rows))
    loaded.write().overwrite().save(str(path))
    again = TorchModel.load(str(path))
    assert again._trained == loaded._trained
    assert again._trained.signature == ROW
    exported = tmp_path / "out" / "model.pt2"
    model.exportProgram(str(exported))
    torch.testing.assert_close(torch.export.load(str(exported)).module()(rows), model.module()(rows))
    with pytest.raises(InvalidInput, match="exists; delete it"):
        model.exportProgram(exported.as_uri())


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_program_has_precision_of_its_model(spark, tmp_path, precision):
    name = "float64" if precision == "fp64" else "float32"
    module = nets.Line().to(getattr(torch, name))
    model = line(module, precision=precision, signature=[([3], name)], output=[1])
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert {str(tensor.dtype) for tensor in loaded.module().parameters()} == {f"torch.{name}"}
    assert scored(loaded) == scored(model)


def test_pickled_architecture_warns_and_needs_trust(spark, tmp_path):
    model, reason, path = line(CHOOSY), "Choosy cannot be exported", str(tmp_path / "model")
    with pytest.warns(UserWarning, match=f"saved as a pickle, .*trust=True.*: .*{reason}"):
        model.save(path)
    assert files_of(tmp_path / "model") == {"model.pkl", "weights.safetensors"}
    with pytest.raises(InvalidInput, match=r"pickled parts.*the model's architecture.*trust=True.*spark.sparkdl.trust"):
        TorchModel.load(path)
    loaded = TorchModel.load(path, trust=True)
    torch.testing.assert_close(loaded.module().state_dict(), model.module().state_dict())
    assert len(scored(loaded)) == 20
    for other, message in ((model, reason), (line(nets.Line(), signature=None), "inputs are not known")):
        with pytest.raises(InvalidInput, match=message):
            other.exportProgram(str(tmp_path / "model.pt2"))
    assert not (tmp_path / "model.pt2").exists()


def test_forged_program_needs_trust(spark, tmp_path):
    path = tmp_path / "model/program.pt2"
    line(nets.Line()).save(str(path.parent))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_bytes(rewritten(path.read_bytes(), {"data/weights/model.pt": b"forged"}))
    with pytest.raises(InvalidInput, match=r"can run code .*data/weights/model.pt .*spark.sparkdl.trust"):
        TorchModel.load(str(path.parent))


def test_values_without_name_are_pickled_and_need_trust(spark, tmp_path):
    path = str(tmp_path / "estimator[1]")
    estimator = TorchRegressor(model=nets.Line(), callbacks=[Callback([1, 2])], batchSize=4)
    estimator.save(path)
    Pipeline(stages=[estimator]).save(f"{path}s")
    for kind, saved in ((TorchRegressor, path), (Pipeline, escaped(f"{path}s"))):
        with pytest.raises(InvalidInput, match=r"\['callbacks', 'model'\].*trust=True.*spark.sparkdl.trust"):
            kind.load(saved)
    with conf(spark, "spark.sparkdl.trust", "true"):
        (stage,) = Pipeline.load(escaped(f"{path}s")).getStages()
    for loaded in (TorchRegressor.load(path, trust=True), stage):
        assert loaded.getCallbacks()[0].seen == [1, 2]
        assert same(loaded.getModel().state_dict(), estimator.getModel().state_dict())
    Path(path, "objects.pkl").unlink()
    with pytest.raises(InvalidInput, match=r"is damaged: objects.pkl cannot be read"):
        TorchRegressor.load(path, trust=True)


def plus(width):
    return nn.Linear(width, 1)


def test_functions_need_their_module(spark, tmp_path):
    estimator, path = TorchRegressor(model=plus, modelArgs={"width": 3}, loss=by_row), tmp_path / "model"
    line(partial(plus, 3)).save(path)
    estimator.save(f"{path}s")
    Pipeline(stages=[estimator]).save(f"{path}es")
    assert modules_of(Bagging(base=Pipeline(stages=[estimator]))) == [__name__, "tests.serving.format.test_factory"]
    with conf(spark, "spark.sparkdl.modules", "other"):
        for load, name in ((TorchModel.load, path), (TorchRegressor.load, f"{path}s"), (Pipeline.load, f"{path}es")):
            with pytest.raises(InvalidInput, match=rf"add modules=\['other', '{__name__}'\].* to 'other,{__name__}'"):
                load(name)
        for reader in (TorchModel.read().trust(), TorchModel.read().trust(False, [__name__])):
            assert reader.load(path)._trained.factory.func is plus
        assert TorchRegressor.load(f"{path}s", modules=["tests"]).getModel() is plus
    with conf(spark, "spark.sparkdl.modules", f" {__name__} , tests.serving.format.test_factory"):
        assert Pipeline.load(f"{path}es").getStages()[0].getLoss() is by_row


KINDS = {
    "model": line,
    "estimator": lambda factory: TorchRegressor(model=factory),
    "ensemble": lambda factory: EnsembleModel([line(factory)], rule="mean"),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_local_functions_are_pickled_by_value(make):
    width, lock = 3, threading.Lock()
    made = make(lambda: plus(width))
    again = copy.deepcopy(pickle.loads(pickle.dumps(made)))  # noqa: S301 - of this test
    assert (again.uid, type(again)) == (made.uid, type(made))
    assert vars(copy.copy(made)) == vars(made)
    with pytest.raises(InvalidInput, match=r"lock is of type lock and cannot be pickled: .* leave it out in __getst"):
        pickle.dumps(make(lambda: lock and plus(width)))


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
        ({"format": None}, "has the format None; expected 5"),
        ({"format": 1}, r"written by an older sparkdl \(format 1\)"),
        ({"architecture": "stone"}, "is damaged: .*stone"),
        ({"factory": {"partial": "tests.ml.nets:Line"}}, "is damaged: .*partial"),
        ({"factory": {"value": 5}}, "is damaged: .*the factory is 5"),
        ({"objects": {"collate": {"name": "os:system"}}}, "names os.system; expected nothing of Python's own"),
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
