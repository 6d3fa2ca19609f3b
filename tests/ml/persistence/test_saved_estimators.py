"""Estimators on disk: Params by name, pickled without a name, and both in pipelines of another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torchmetrics
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn
from torch.optim.lr_scheduler import StepLR

from sparkdl import TorchClassifier, TorchEstimator, TorchModel, TorchRegressor
from sparkdl.data.columns import InputColumn
from sparkdl.errors import InvalidInput
from sparkdl.io.weights import pack
from sparkdl.ml.persistence.param_values import same
from tests.ml import nets
from tests.ml.persistence.test_factory import Callback, Doubling
from tests.sessions import ROOT, frame

FULL = partial(
    TorchClassifier,
    model=partial(nets.mlp, 3, outputs=2),
    loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5])),
    optimizer=partial(torch.optim.SGD, lr=0.1),
    scheduler=partial(StepLR, step_size=3),
    metrics={"accuracy": torchmetrics.classification.BinaryAccuracy()},
    columnSpecs=[InputColumn("features", "float32", (3,))],
    thresholds=[0.5, 0.5],
    labelCol="y",
    batchSize=4,
    epochs=2,
    augment=Doubling(),
    callbacks=[Doubling(1.0)],
)


@pytest.mark.parametrize("make", [FULL, TorchRegressor, partial(TorchEstimator, model=nets.Line, labelCol=None)])
def test_loaded_estimator_equals_saved_one(spark, tmp_path, make):
    def values(estimator):
        return {param.name: estimator.getOrDefault(param) for param in estimator.params if estimator.isDefined(param)}

    estimator, path = make(), str(tmp_path / "estimator")
    estimator.save(path)
    loaded = type(estimator).load(path)
    assert (type(loaded), loaded.uid) == (type(estimator), estimator.uid)
    assert same(values(loaded), values(estimator))
    for param in loaded.params:
        assert loaded.isSet(param.name) == estimator.isSet(param.name)
    assert {entry.name for entry in (tmp_path / "estimator").iterdir()} == {"metadata"}
    with pytest.raises(InvalidInput, match="exists; use write"):
        loaded.save(path)
    loaded.copy({loaded.epochs: 9}).write().overwrite().save(path)
    assert type(estimator).load(path).getEpochs() == 9
    assert loaded.getEpochs() == estimator.getEpochs()


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


@pytest.mark.parametrize("kind", [TorchClassifier, TorchModel])
def test_other_class_or_missing_path_raises(spark, tmp_path, kind):
    TorchRegressor(model=nets.Line).write().save(str(tmp_path / "saved"))
    with pytest.raises(InvalidInput, match=f"holds a .*TorchRegressor; expected a sparkdl {kind.__name__}"):
        kind.load(str(tmp_path / "saved"))
    with pytest.raises(InvalidInput, match=f"cannot be loaded as a {kind.__name__}"):
        kind.load(str(tmp_path / "gone"))


def rows():
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
from tests.ml.persistence.test_saved_estimators import assembler, predictions, rows
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
        data = rows()
        pipeline = Pipeline(stages=[assembler(), TorchRegressor(model=Net, batchSize=4)])
        fitted = pipeline.fit(data)
        pipeline.save(folder + "/pipeline")
        fitted.save(folder + "/fitted")
        named = TorchModel.load(folder + "/named")
        found = predictions(fitted, data), predictions(named, assembler().transform(data))
        Path(folder, "predictions").write_text(json.dumps(found))
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
    data = rows()
    np.testing.assert_allclose(predictions(PipelineModel.load(str(tmp_path / "fitted")), data), of_main, rtol=1e-6)
    np.testing.assert_allclose(predictions(named, assembler().transform(data)), of_named, rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"pickled parts.*\['model'\]"):
        Pipeline.load(str(tmp_path / "pipeline"))
    spark.conf.set("spark.sparkdl.trust", "true")
    try:
        again = Pipeline.load(str(tmp_path / "pipeline"))
    finally:
        spark.conf.unset("spark.sparkdl.trust")
    np.testing.assert_allclose(predictions(again.fit(data), data), of_main, rtol=1e-6)
