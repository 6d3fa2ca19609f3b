"""Models on disk: what was saved is what is loaded, elsewhere too, and nothing is lost to a save that fails."""

from __future__ import annotations

import json
import shutil
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
from tests.ml import nets
from tests.ml.persistence.test_export import rewritten
from tests.sessions import frame
from tests.spark import drivers

SCALED = partial(nets.Scaled, 5, scale=0.5)
HISTORY = [{"epoch": 1, "step": 3, "loss": 0.5}, {"epoch": 2, "step": 6, "loss": 0.25}]


def twice(inputs, target):
    """A collate function of a module."""
    return tuple(2 * tensor for tensor in inputs), target


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


class Unpicklable(nets.Line):
    """A notebook's class, as far as names go, that cannot even be pickled."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Choosy(nets.Line):
    """Looks at numbers in Python, and so cannot be exported."""

    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


ROW = [([3], "float32")]


def local():
    """A class that no other program can import."""

    class Local(nets.Line):
        def forward(self, x):
            return 2 * super().forward(x)

    return Local


def line(factory, **others):
    module = factory if isinstance(factory, nn.Module) else factory()
    return TorchModel(factory=factory, weights=pack(module), kind="regressor", signature=ROW, **others)


def numbers():
    return frame({"features": np.random.default_rng(5).normal(size=(20, 3))})


def files_of(path):
    return {entry.name for entry in path.iterdir()} - {"metadata"}


def scored(model):
    return [row["prediction"] for row in model.transform(numbers()).collect()]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_model_that_cannot_be_saved_replaces_nothing(spark, tmp_path, overwrite):
    path = tmp_path / "model"
    made(history=HISTORY).save(str(path))
    hopeless = TorchModel(factory=Unpicklable(), weights=pack(nets.Line()), kind="regressor")
    writer = hopeless.write().overwrite() if overwrite else hopeless.write()
    with pytest.raises(InvalidInput, match="cannot be pickled, and so not saved" if overwrite else "exists; use"):
        writer.save(str(path))
    assert TorchModel.load(str(path)).history == HISTORY
    assert len(predictions(TorchModel.load(str(path)))) == 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_save_that_fails_halfway_replaces_nothing(spark, tmp_path, monkeypatch):
    path = tmp_path / "model"
    made(history=HISTORY).save(str(path))
    monkeypatch.setattr(reader_writer.DefaultParamsWriter, "saveMetadata", Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        made().write().overwrite().save(str(path))
    assert TorchModel.load(str(path)).history == HISTORY
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "factory", [nets.Line(), local(), lambda: nets.mlp(3, outputs=1)], ids=["instance", "local", "lambda"]
)
def test_what_has_no_name_is_saved_as_a_program(spark, tmp_path, factory):
    model, path = line(factory, history=HISTORY), tmp_path / "model"
    model.save(str(path))
    assert files_of(path) == {"program.pt2"}
    loaded = TorchModel.load(str(path))
    assert (loaded.uid, loaded.history) == (model.uid, HISTORY)
    np.testing.assert_allclose(scored(loaded), scored(model), rtol=1e-5)
    loaded.write().overwrite().save(str(path))
    again = TorchModel.load(str(path))
    assert scored(again) == scored(loaded)
    assert (again._factory, again._weights, again._signature) == (loaded._factory, loaded._weights, ROW)
    assert again.module()(torch.zeros(7, 3)).shape[0] == 7


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_a_program_has_the_precision_of_its_model(spark, tmp_path, precision):
    wide = precision == "fp64"
    module = nets.Line().double() if wide else nets.Line()
    signature = [([3], "float64" if wide else "float32")]
    model = TorchModel(factory=module, weights=pack(module), precision=precision, signature=signature, scalar=True)
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert {tensor.dtype for tensor in loaded.module().parameters()} == {torch.float64 if wide else torch.float32}
    assert loaded.transform(numbers()).schema == model.transform(numbers()).schema
    assert scored(loaded) == scored(model)


def test_a_program_with_other_weights_is_another_model(spark, tmp_path):
    for name, factor in (("one", 1.0), ("two", 2.0)):
        module = nets.Line()
        torch.nn.init.constant_(module.inner[0].weight, factor)
        line(module).save(str(tmp_path / name))
    one, two = TorchModel.load(str(tmp_path / "one")), TorchModel.load(str(tmp_path / "two"))
    assert one._factory != two._factory
    assert scored(one) != scored(two)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: line(Choosy()), "Choosy cannot be exported"),
        (lambda: TorchModel(factory=nets.Line(), weights=pack(nets.Line()), kind="regressor"), "inputs are not known"),
    ],
    ids=["choosy", "no signature"],
)
def test_a_pickled_architecture_warns_and_needs_trust(spark, tmp_path, model, reason):
    path = str(tmp_path / "model")
    with pytest.warns(UserWarning, match=f"saved as a pickle, which loads with trust=True alone: .*{reason}"):
        model().save(path)
    assert files_of(tmp_path / "model") == {"model.pkl", "weights.safetensors"}
    with pytest.raises(
        InvalidInput, match=r"pickled parts, .*the model's architecture.*trust=True.*spark.sparkdl.trust"
    ):
        TorchModel.load(path)
    for loaded in (TorchModel.load(path, trust=True), TorchModel.read().trust().load(path)):
        torch.testing.assert_close(loaded.module().state_dict(), model().module().state_dict())
        assert len(scored(loaded)) == 20
    spark.conf.set("spark.sparkdl.trust", "true")
    try:
        TorchModel.load(path)
    finally:
        spark.conf.unset("spark.sparkdl.trust")


def forge(path, name, data):
    """Another program in the place of the saved one."""
    changed = rewritten(path.read_bytes(), {name: data})
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_bytes(changed)


def test_a_forged_program_needs_trust(spark, tmp_path):
    line(nets.Line()).save(str(tmp_path / "model"))
    forge(tmp_path / "model/program.pt2", "data/weights/model.pt", b"forged")
    with pytest.raises(InvalidInput, match=r"can run code that is in it: data/weights/model.pt .*spark.sparkdl.trust"):
        TorchModel.load(str(tmp_path / "model"))


def test_collate_travels_with_its_model(spark, tmp_path):
    named = line(nets.Line).setCollate(twice)
    named.save(str(tmp_path / "named"))
    assert TorchModel.load(str(tmp_path / "named")).getCollate() is twice
    line(nets.Line).setCollate(lambda inputs, target: (inputs, target)).save(str(tmp_path / "nameless"))
    with pytest.raises(InvalidInput, match=r"pickled parts, .*\['collate'\]"):
        TorchModel.load(str(tmp_path / "nameless"))
    loaded = TorchModel.load(str(tmp_path / "nameless"), trust=True)
    assert loaded.getCollate()((1,), 2) == ((1,), 2)


def test_export_program_writes_a_file_for_others(spark, tmp_path):
    model, path = line(local()), tmp_path / "out" / "model.pt2"
    model.exportProgram(str(path))
    rows = torch.rand(9, 3)
    torch.testing.assert_close(torch.export.load(str(path)).module()(rows), model.module()(rows))
    with pytest.raises(InvalidInput, match="exists; delete it"):
        model.exportProgram(path.as_uri())
    for hopeless, why in ((line(Choosy()), "Choosy cannot be exported"), (made(), "inputs are not known")):
        with pytest.raises(InvalidInput, match=why):
            hopeless.exportProgram(str(tmp_path / "other.pt2"))
    assert not (tmp_path / "other.pt2").exists()


def test_a_fit_tells_the_model_what_its_inputs_are(spark, tmp_path):
    rows = frame({"x": np.ones((8, 2, 2)), "kind": np.arange(8) % 3, "price": np.ones(8), "label": np.ones(8)})
    fitted = TorchRegressor(model=nets.Scaled(), inputCols=["x", "kind", "price"], batchSize=4).fit(rows)
    assert fitted._signature == [([2, 2], "float32"), ([], "int64"), ([], "float32")]
    fitted.save(str(tmp_path / "model"))
    assert files_of(tmp_path / "model") == {"program.pt2"}
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.transform(rows).collect() == fitted.transform(rows).collect()


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
        ({"format": None}, "has the format None; expected 3"),
        ({"format": 1}, r"was written by an older sparkdl \(format 1\)"),
        ({"architecture": "stone"}, "is damaged: .*stone"),
        ({"factory": {"path": "tests.ml.nets:Line"}}, "is damaged: .*args"),
        ({"objects": {"collate": {"name": "os:system"}}}, "names os.system; expected nothing of Python's own"),
        ({"objects": {"collate": {"name": "torch:load"}}}, "names torch.load, which is "),
        ({"factory": {"path": "torch:load", "args": ["x"], "kwargs": {}}}, "expected a subclass of torch.nn.Module"),
        ({"factory": {"path": "tests.ml.gone:Net", "args": [], "kwargs": {}}}, "tests.ml.gone.Net cannot be imported"),
    ],
)
def test_what_cannot_be_understood_here_is_not_loaded(spark, tmp_path, changes, message):
    made().save(str(tmp_path / "model"))
    with pytest.raises(InvalidInput, match=message):
        TorchModel.load(edited(tmp_path / "model", **changes))


@pytest.mark.parametrize("damage", ["missing", "truncated", "metadata", "nothing"])
@pytest.mark.parametrize("name", ["weights.safetensors", "program.pt2"])
def test_a_damaged_model_is_not_loaded(spark, tmp_path, damage, name):
    path = tmp_path / "model"
    line(nets.Line if name == "weights.safetensors" else nets.Line()).save(str(path))
    held = path / name
    if damage == "missing":
        held.unlink()
    elif damage == "truncated":
        held.write_bytes(held.read_bytes()[:-10])
    elif damage == "metadata":
        for part in path.glob("metadata/*part-*"):
            part.unlink() if part.name.startswith(".") else part.write_text("{half")
    else:
        shutil.rmtree(path)
    with pytest.raises(InvalidInput, match=r"damaged|cannot be loaded as a TorchModel"):
        TorchModel.load(str(path))


def test_a_pipeline_is_saved_with_the_model_in_it(spark, tmp_path):
    rows = frame({name: np.arange(5) / 5 for name in "abc"})
    stages = [VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"), line(nets.Line, history=HISTORY)]
    fitted = Pipeline(stages=stages).fit(rows)
    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert loaded.stages[1].history == HISTORY
    assert loaded.transform(rows).collect() == fitted.transform(rows).collect()
